package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds.
const (
	// MaxTemplate is the largest object of a Resource, MaxObject that of a state, in bytes of JSON. Servers add defaults.
	MaxTemplate = 256 << 10
	MaxObject   = 512 << 10
	// MaxDrift is how many drifted fields are listed, MaxError the length of an error, MaxValue of a drifted field's value.
	MaxDrift = 64
	MaxError = 1024
	MaxValue = 256
	// MaxHistory is the number of former revisions, maxHistoryBytes what they may have together.
	MaxHistory      = 10
	maxHistoryBytes = 512 << 10

	maxResourceName = 150 // the names of states are longer
	maxIgnore       = 64
	maxDependsOn    = 64
	maxWave         = 1000
	maxDepth        = 64
)

// DefaultKey is the default key of a Secret with a kubeconfig.
const DefaultKey = "kubeconfig"

// DefaultCluster sets the defaults. It is idempotent.
func DefaultCluster(c *Cluster) {
	if s := c.Spec.KubeconfigSecret; s != nil && s.Key == "" {
		s.Key = DefaultKey
	}
}

// ValidateCluster validates a cluster. Its name is a DNS label: names of states end with it.
func ValidateCluster(c *Cluster) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	for _, m := range validation.IsDNS1123Label(c.Name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, m))
	}
	at := spec.Child("kubeconfigSecret")
	switch s := c.Spec.KubeconfigSecret; {
	case s == nil && !c.Spec.Local:
		errs = append(errs, field.Required(at, "the Secret with a kubeconfig, unless local is true"))
	case s == nil:
	case c.Spec.Local:
		errs = append(errs, field.Forbidden(at, "local is true: there is nothing to connect to"))
	default:
		for _, m := range validation.IsDNS1123Label(s.Namespace) {
			errs = append(errs, field.Invalid(at.Child("namespace"), s.Namespace, m))
		}
		for _, m := range validation.IsDNS1123Subdomain(s.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), s.Name, m))
		}
		for _, m := range validation.IsConfigMapKey(s.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), s.Key, m))
		}
	}
	return errs
}

// Default sets the defaults. It is idempotent. Once the object has a UID it has an id as well.
func Default(r *Resource) {
	if r.Spec.Mode == "" {
		r.Spec.Mode = ModeCorrect
	}
	if r.Spec.DeletionPolicy == "" {
		r.Spec.DeletionPolicy = DeletionDelete
	}
	if r.Spec.Revision == nil {
		first := int64(1)
		r.Spec.Revision = &first
	}
	if r.UID != "" && r.Status.ID == 0 {
		r.Status.ID = IDOf(string(r.UID))
	}
}

// IDOf returns the id of a Resource with that UID: positive, and below 2^53, as JavaScript's numbers must be.
func IDOf(uid string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid))
	return int64(h.Sum64()>>11) | 1
}

// Prepare brings a Resource that is written into its form: a template with sorted keys, so that only changes of content are changes, and the
// revision of the old one, which is nil for a create, if none was sent.
func Prepare(r, old *Resource) {
	r.Spec.Template = canonical(r.Spec.Template)
	if old != nil {
		r.Status.ID, r.Status.History = old.Status.ID, old.Status.History
	}
}

// Changed is called if an update changes the spec: the revision rises unless it was set, and the former content goes into the history.
func Changed(r, old *Resource) {
	was := revisionOf(old)
	if r.Spec.Revision == nil || *r.Spec.Revision == was {
		next := was + 1
		r.Spec.Revision = &next
	}
	if bytes.Equal(r.Spec.Template.Raw, old.Spec.Template.Raw) && *r.Spec.Revision == was {
		return
	}
	history := append([]Revision{{Revision: was, Generation: old.Generation, Template: old.Spec.Template, ReplacedAt: metav1.NewTime(time.Now())}}, old.Status.History...)
	size := 0
	for i := range history {
		size += len(history[i].Template.Raw)
		if i == MaxHistory || size > maxHistoryBytes {
			history = history[:i]
			break
		}
	}
	r.Status.History = history
}

// PrepareStatus restores what a write to the status cannot change.
func PrepareStatus(r, old *Resource) {
	r.Status.ID, r.Status.History = old.Status.ID, old.Status.History
}

func revisionOf(r *Resource) int64 {
	if r.Spec.Revision == nil {
		return 1
	}
	return *r.Spec.Revision
}

// canonical returns JSON with sorted keys and without white space; what is not JSON is returned as it is, for the validation.
func canonical(e runtime.RawExtension) runtime.RawExtension {
	var v any
	d := json.NewDecoder(bytes.NewReader(e.Raw))
	d.UseNumber()
	if len(e.Raw) > MaxTemplate || d.Decode(&v) != nil {
		return e
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return e
	}
	return runtime.RawExtension{Raw: bytes.TrimSpace(out.Bytes())}
}

// header is what identifies the object of a template.
//
// +kubebuilder:object:generate=false
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// TargetOf returns which object a Resource is about; what cannot be read is empty.
func TargetOf(r *Resource) Target {
	var h header
	_ = json.Unmarshal(r.Spec.Template.Raw, &h) // it was validated
	return Target{APIVersion: h.APIVersion, Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
}

// WaveOf returns a Resource's wave.
func WaveOf(r *Resource) int {
	n, _ := strconv.Atoi(r.Annotations[AnnotationWave]) // it was validated
	return n
}

// StateName returns the name of the states of a Resource on a cluster.
func StateName(resource, cluster string) string { return resource + "." + cluster }

// SplitStateName returns the Resource and the cluster of a state's name.
func SplitStateName(name string) (resource, cluster string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, ""
	}
	return name[:i], name[i+1:]
}

// Validate validates a Resource.
func Validate(r *Resource) field.ErrorList {
	spec, meta := field.NewPath("spec"), field.NewPath("metadata")
	var errs field.ErrorList
	if len(r.Name) > maxResourceName {
		errs = append(errs, field.TooLong(meta.Child("name"), "", maxResourceName))
	}
	if v, ok := r.Annotations[AnnotationWave]; ok {
		if n, err := strconv.Atoi(v); err != nil || n < -maxWave || n > maxWave {
			errs = append(errs, field.Invalid(meta.Child("annotations").Key(AnnotationWave), v, fmt.Sprintf("must be an integer from %d to %d", -maxWave, maxWave)))
		}
	}
	switch s := &r.Spec; {
	case s.ClusterName == "" && s.ClusterSelector == nil:
		errs = append(errs, field.Required(spec.Child("clusterName"), "the cluster that should have the object, or clusterSelector"))
	case s.ClusterName != "" && s.ClusterSelector != nil:
		errs = append(errs, field.Forbidden(spec.Child("clusterSelector"), "clusterName is set"))
	case s.ClusterName != "":
		for _, m := range validation.IsDNS1123Label(s.ClusterName) {
			errs = append(errs, field.Invalid(spec.Child("clusterName"), s.ClusterName, m))
		}
	default:
		errs = append(errs, unversioned.ValidateLabelSelector(s.ClusterSelector, unversioned.LabelSelectorValidationOptions{}, spec.Child("clusterSelector"))...)
	}
	if v := r.Spec.Revision; v != nil && *v < 1 {
		errs = append(errs, field.Invalid(spec.Child("revision"), *v, "must be above 0"))
	}
	if all := []Mode{ModeReport, ModeCorrect, ModeEnforce}; !slices.Contains(all, r.Spec.Mode) {
		errs = append(errs, field.NotSupported(spec.Child("mode"), r.Spec.Mode, all))
	}
	if all := []DeletionPolicy{DeletionOrphan, DeletionDelete}; !slices.Contains(all, r.Spec.DeletionPolicy) {
		errs = append(errs, field.NotSupported(spec.Child("deletionPolicy"), r.Spec.DeletionPolicy, all))
	}
	errs = append(errs, validateIgnore(r.Spec.Ignore, spec.Child("ignore"))...)
	errs = append(errs, validateDependsOn(r, spec.Child("dependsOn"))...)
	return append(errs, validateTemplate(r.Spec.Template.Raw, spec.Child("template"))...)
}

func validateIgnore(y *Ignore, at *field.Path) (errs field.ErrorList) {
	if y == nil {
		return nil
	}
	if n := len(y.Fields); n > maxIgnore {
		return field.ErrorList{field.TooMany(at.Child("fields"), n, maxIgnore)}
	}
	if n := len(y.Managers); n > maxIgnore {
		return field.ErrorList{field.TooMany(at.Child("managers"), n, maxIgnore)}
	}
	for i, p := range y.Fields {
		steps, err := ParsePath(p)
		if err != nil {
			errs = append(errs, field.Invalid(at.Child("fields").Index(i), p, err.Error()))
		} else if n := steps[0].Name; n != nil && slices.Contains([]string{"apiVersion", "kind"}, *n) || len(steps) == 1 && n != nil && *n == "metadata" {
			errs = append(errs, field.Invalid(at.Child("fields").Index(i), p, "cannot be ignored"))
		}
	}
	for i, m := range y.Managers {
		if m == "" || len(m) > unversioned.FieldManagerMaxLength || m == FieldManager {
			errs = append(errs, field.Invalid(at.Child("managers").Index(i), m, fmt.Sprintf("must be the name of another field manager, of 1 to %d bytes", unversioned.FieldManagerMaxLength)))
		}
	}
	return errs
}

func validateDependsOn(r *Resource, at *field.Path) (errs field.ErrorList) {
	if n := len(r.Spec.DependsOn); n > maxDependsOn {
		return field.ErrorList{field.TooMany(at, n, maxDependsOn)}
	}
	seen := map[string]bool{}
	for i, name := range r.Spec.DependsOn {
		switch {
		case name == r.Name:
			errs = append(errs, field.Invalid(at.Index(i), name, "a resource cannot depend on itself"))
		case seen[name]:
			errs = append(errs, field.Duplicate(at.Index(i), name))
		default:
			for _, m := range validation.IsDNS1123Subdomain(name) {
				errs = append(errs, field.Invalid(at.Index(i), name, m))
			}
		}
		seen[name] = true
	}
	return errs
}

// validateTemplate validates what every object has. The rest is validated by the clusters.
func validateTemplate(raw []byte, at *field.Path) (errs field.ErrorList) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return field.ErrorList{field.Required(at, "the object that the clusters should have")}
	case len(raw) > MaxTemplate:
		return field.ErrorList{field.TooLong(at, "", MaxTemplate)}
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return field.ErrorList{field.Invalid(at, "", "must be an object")}
	}
	if tooDeep(object, maxDepth) {
		return field.ErrorList{field.Invalid(at, "", fmt.Sprintf("is nested more than %d levels deep", maxDepth))}
	}
	version, _ := object["apiVersion"].(string)
	gv, err := schema.ParseGroupVersion(version)
	kind, _ := object["kind"].(string)
	switch {
	case err != nil || gv.Version == "":
		errs = append(errs, field.Invalid(at.Child("apiVersion"), version, "must be a version, such as v1 or apps/v1"))
	case gv.Group == GroupVersion.Group:
		errs = append(errs, field.Invalid(at.Child("apiVersion"), version, "objects of Kontrol cannot be applied by Kontrol: a Resource could make itself"))
	}
	if kind == "" || len(kind) > 63 || len(validation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		errs = append(errs, field.Invalid(at.Child("kind"), kind, "must be a kind, such as ConfigMap"))
	}
	if strings.HasSuffix(kind, "List") && object["items"] != nil {
		errs = append(errs, field.Invalid(at.Child("kind"), kind, "must be one object: make a Resource of each item"))
	}
	if _, ok := object["status"]; ok {
		errs = append(errs, field.Forbidden(at.Child("status"), "the cluster writes it"))
	}
	meta, _ := object["metadata"].(map[string]any)
	metadata := at.Child("metadata")
	for name, v := range meta {
		switch name {
		case "name", "namespace":
			if _, ok := v.(string); !ok {
				errs = append(errs, field.Invalid(metadata.Child(name), "", "must be a string"))
			}
		case "labels", "annotations":
			errs = append(errs, validateTexts(v, name, metadata.Child(name))...)
		default:
			if v != nil {
				errs = append(errs, field.Forbidden(metadata.Child(name), "only name, namespace, labels and annotations may be set"))
			}
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	name, _ := meta["name"].(string)
	for _, m := range content.IsPathSegmentName(name) {
		errs = append(errs, field.Invalid(metadata.Child("name"), name, m))
	}
	if name == "" || len(name) > 253 {
		errs = append(errs, field.Required(metadata.Child("name"), "of 1 to 253 bytes; generateName is not supported"))
	}
	if namespace, _ := meta["namespace"].(string); namespace != "" {
		for _, m := range validation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(metadata.Child("namespace"), namespace, m))
		}
	}
	return errs
}

// validateTexts validates labels or annotations.
func validateTexts(v any, name string, at *field.Path) (errs field.ErrorList) {
	if v == nil {
		return nil
	}
	texts := map[string]string{}
	all, ok := v.(map[string]any)
	for key, value := range all {
		text, isText := value.(string)
		ok = ok && isText
		texts[key] = text
		if strings.HasPrefix(key, "kontrol/") && key != AnnotationWave {
			errs = append(errs, field.Forbidden(at.Key(key), "Kontrol sets it"))
		}
	}
	if !ok {
		return field.ErrorList{field.Invalid(at, "", "must be a map of strings")}
	}
	if name == "labels" {
		return append(errs, unversioned.ValidateLabels(texts, at)...)
	}
	return append(errs, apivalidation.ValidateAnnotations(texts, at)...)
}

func tooDeep(v any, left int) bool {
	if left == 0 {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		for _, c := range v {
			if tooDeep(c, left-1) {
				return true
			}
		}
	case []any:
		for _, c := range v {
			if tooDeep(c, left-1) {
				return true
			}
		}
	}
	return false
}

// ValidateUpdate validates an update: the object that it is about stays the same.
func ValidateUpdate(r, old *Resource) field.ErrorList {
	errs := Validate(r)
	if len(errs) > 0 {
		return errs
	}
	is, was := TargetOf(r), TargetOf(old)
	at := field.NewPath("spec", "template")
	for _, c := range []struct {
		path    *field.Path
		is, was string
	}{
		{at.Child("apiVersion"), group(is), group(was)}, {at.Child("kind"), is.Kind, was.Kind},
		{at.Child("metadata", "namespace"), is.Namespace, was.Namespace}, {at.Child("metadata", "name"), is.Name, was.Name},
	} {
		if c.is != c.was {
			errs = append(errs, field.Invalid(c.path, c.is, "cannot be changed: the object of that name would stay behind; make another Resource"))
		}
	}
	return errs
}

func group(t Target) string {
	gv, _ := schema.ParseGroupVersion(t.APIVersion) // it was validated
	return gv.Group
}

// ValidateApplied and ValidateCurrent validate the bounds of states.
func ValidateApplied(a *AppliedState) field.ErrorList {
	return append(validateSubject(&a.State.Subject, a.Name), validateSizes(map[string]int{
		"object": len(a.State.Object.Raw), "fields": len(a.State.Fields.Raw)}, a.State.Error)...)
}

// ValidateCurrent is ValidateApplied of current states.
func ValidateCurrent(c *CurrentState) field.ErrorList {
	errs := append(validateSubject(&c.State.Subject, c.Name), validateSizes(map[string]int{"object": len(c.State.Object.Raw)}, c.State.Error)...)
	if n := len(c.State.Drift); n > MaxDrift {
		errs = append(errs, field.TooMany(field.NewPath("state", "drift"), n, MaxDrift))
	}
	for i, d := range c.State.Drift {
		if len(d.Desired) > MaxValue || len(d.Actual) > MaxValue {
			errs = append(errs, field.TooLong(field.NewPath("state", "drift").Index(i), "", MaxValue))
		}
	}
	return errs
}

func validateSubject(s *Subject, name string) field.ErrorList {
	if want := StateName(s.Resource, s.Cluster); name != want {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, "must be "+want)}
	}
	return nil
}

func validateSizes(objects map[string]int, text string) (errs field.ErrorList) {
	at := field.NewPath("state")
	for name, n := range objects {
		if n > MaxObject {
			errs = append(errs, field.TooLong(at.Child(name), "", MaxObject))
		}
	}
	if len(text) > MaxError {
		errs = append(errs, field.TooLong(at.Child("error"), "", MaxError))
	}
	return errs
}
