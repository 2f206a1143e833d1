package custom

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Names counts the holders of each name in one API group.
type Names struct {
	Resources map[string]int // plural, singular and short names
	Kinds     map[string]int // kinds of objects and lists
}

// Add adds the names that a definition holds.
func (n *Names) Add(names apiextensionsv1.CustomResourceDefinitionNames) { n.count(names, 1) }

// Remove removes names that were added before.
func (n *Names) Remove(names apiextensionsv1.CustomResourceDefinitionNames) { n.count(names, -1) }

// Empty reports whether no name is in use.
func (n *Names) Empty() bool { return len(n.Resources)+len(n.Kinds) == 0 }

func (n *Names) count(names apiextensionsv1.CustomResourceDefinitionNames, by int) {
	if n.Resources == nil {
		n.Resources, n.Kinds = map[string]int{}, map[string]int{}
	}
	add := func(to map[string]int, name string) {
		if name == "" {
			return
		}
		if to[name] += by; to[name] <= 0 {
			delete(to, name)
		}
	}
	add(n.Resources, names.Plural)
	add(n.Resources, names.Singular)
	for _, name := range names.ShortNames {
		add(n.Resources, name)
	}
	add(n.Kinds, names.Kind)
	add(n.Kinds, names.ListKind)
}

// Accept sets status.acceptedNames and the conditions NamesAccepted and Established, and reports whether the
// definition can be served. A name in use is not accepted. used has the accepted names of all definitions of the
// group, including this one. A definition whose names are accepted becomes Established unless the CA bundle of its
// conversion webhook is invalid. Write the status only after the definition is served.
func Accept(crd *apiextensionsv1.CustomResourceDefinition, used Names) bool {
	want, have := crd.Spec.Names, crd.Status.AcceptedNames
	accepted := have
	condition := apiextensionsv1.CustomResourceDefinitionCondition{
		Type:    apiextensionsv1.NamesAccepted,
		Status:  apiextensionsv1.ConditionTrue,
		Reason:  "NoConflicts",
		Message: "no conflicts found",
	}
	conflict := func(reason string, err error) {
		condition.Status, condition.Reason, condition.Message = apiextensionsv1.ConditionFalse, reason, err.Error()
	}
	take := func(want, have string, used map[string]int, reason string, to *string) {
		if err := free(want, have, used); err != nil {
			conflict(reason, err)
		} else {
			*to = want
		}
	}
	take(want.Plural, have.Plural, used.Resources, "PluralConflict", &accepted.Plural)
	take(want.Singular, have.Singular, used.Resources, "SingularConflict", &accepted.Singular)
	if !slices.Equal(want.ShortNames, have.ShortNames) {
		var errs []error
		for _, name := range want.ShortNames {
			if slices.Contains(have.ShortNames, name) {
				continue
			}
			if err := free(name, "", used.Resources); err != nil {
				errs = append(errs, err)
			}
		}
		if err := utilerrors.NewAggregate(errs); err != nil {
			conflict("ShortNamesConflict", err)
		} else {
			accepted.ShortNames = want.ShortNames
		}
	}
	take(want.Kind, have.Kind, used.Kinds, "KindConflict", &accepted.Kind)
	take(want.ListKind, have.ListKind, used.Kinds, "ListKindConflict", &accepted.ListKind)
	accepted.Categories = want.Categories
	crd.Status.AcceptedNames = accepted
	set(crd, condition)

	established := apiextensionsv1.CustomResourceDefinitionCondition{
		Type:    apiextensionsv1.Established,
		Status:  apiextensionsv1.ConditionFalse,
		Reason:  "NotAccepted",
		Message: "not all names are accepted",
	}
	if old := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established); old != nil {
		established = *old
	}
	ok := condition.Status == apiextensionsv1.ConditionTrue
	switch {
	case established.Status == apiextensionsv1.ConditionTrue || !ok:
	case !readable(crd):
		established.Status, established.Reason, established.Message = apiextensionsv1.ConditionFalse, "InvalidCABundle",
			"The conversion webhook CABundle is invalid"
	default:
		established.Status, established.Reason, established.Message = apiextensionsv1.ConditionTrue, "InitialNamesAccepted",
			"the initial names have been accepted"
	}
	set(crd, established)
	return ok || established.Status == apiextensionsv1.ConditionTrue
}

// Disown removes a definition's accepted names and its conditions NamesAccepted and Established, because the server
// now has a built-in kind of the same name. The objects belong to the built-in kind and stay when the definition is
// deleted.
func Disown(crd *apiextensionsv1.CustomResourceDefinition) {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		crd.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{}
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NamesAccepted)
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.Established)
	}
}

// readable reports whether the definition has no conversion webhook, or one with a valid CA bundle.
func readable(crd *apiextensionsv1.CustomResourceDefinition) bool {
	c := crd.Spec.Conversion
	return c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil ||
		len(webhook.ValidateCABundle(field.NewPath(""), c.Webhook.ClientConfig.CABundle)) == 0
}

func free(want, have string, used map[string]int) error {
	if want == have || used[want] == 0 {
		return nil
	}
	return fmt.Errorf("%q is already in use", want)
}

// set sets a condition unless it would change only the transition time.
func set(crd *apiextensionsv1.CustomResourceDefinition, c apiextensionsv1.CustomResourceDefinitionCondition) {
	if !apihelpers.IsCRDConditionEquivalent(&c, apihelpers.FindCRDCondition(crd, c.Type)) {
		c.LastTransitionTime = metav1.Time{}
		apihelpers.SetCRDCondition(crd, c)
		whole := apihelpers.FindCRDCondition(crd, c.Type)
		whole.LastTransitionTime = whole.LastTransitionTime.Rfc3339Copy()
	}
}

// Inspect sets the conditions NonStructuralSchema and KubernetesAPIApprovalPolicyConformant. It returns an error if
// the schemas cannot be used at all.
func Inspect(crd *apiextensionsv1.CustomResourceDefinition) error {
	condition, err := nonStructural(crd)
	if condition != nil {
		set(crd, *condition)
	} else if apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema) != nil {
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
	}
	if c := approval(crd); c != nil {
		set(crd, *c)
	}
	return err
}

func nonStructural(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinitionCondition,
	error) {
	var errs field.ErrorList
	if crd.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	var broken []error
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		found, err := guarded(func() (field.ErrorList, error) {
			in, err := internalSchema(v)
			if err != nil || in == nil {
				return nil, err
			}
			s, err := structuralschema.NewStructural(in)
			if err != nil {
				return nil, err
			}
			return structuralschema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema",
				"openAPIV3Schema"), s), nil
		})
		if err != nil {
			broken = append(broken, fmt.Errorf("failed to check validation schema for version %s: %w", v.Name, err))
		}
		errs = append(errs, found...)
	}
	c := &apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue,
	}
	switch {
	case len(broken) > 0:
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionUnknown, "StructuralError", bounded.Text(broken[0].Error(),
			maxMessage)
	case len(errs) > 0:
		c.Reason, c.Message = "Violations", bounded.Text(errs.ToAggregate().Error(), maxMessage)
	default:
		return nil, nil
	}
	return c, errors.Join(broken...)
}

// maxMessage is the maximum length of a condition's message, in bytes.
const maxMessage = 32 << 10

// approval returns the condition for definitions in a protected community group (*.k8s.io, *.kubernetes.io),
// otherwise nil.
func approval(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, why := apihelpers.GetAPIApprovalState(crd.Annotations)
	c := &apiextensionsv1.CustomResourceDefinitionCondition{
		Type:    apiextensionsv1.KubernetesAPIApprovalPolicyConformant,
		Status:  apiextensionsv1.ConditionFalse,
		Message: why,
	}
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}

// Terminating sets the condition Terminating, which reports the progress of deleting a definition's objects.
func Terminating(crd *apiextensionsv1.CustomResourceDefinition, status apiextensionsv1.ConditionStatus,
	reason, message string) {
	set(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type:    apiextensionsv1.Terminating,
		Status:  status,
		Reason:  reason,
		Message: bounded.Text(message, maxMessage),
	})
}
