package registry

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// mayCreate rejects a create in a namespace that does not exist or is terminating, as upstream's NamespaceLifecycle
// plugin does, and a create beyond the kind's maximum number of objects.
func (c *call) mayCreate(name string) error {
	if why := c.Resource.NoCreate; why != "" && c.Subresource == "" {
		return apierrors.NewForbidden(c.gr(), name, errors.New(why))
	}
	if most := c.row.Most; most > 0 && c.Subresource == "" && c.cache.Count(c.row) >= most && c.entry() == nil {
		return apierrors.NewForbidden(c.gr(), name,
			fmt.Errorf("this cluster has %d %s, the maximum: delete unused ones", most, c.gr()))
	}
	if c.Namespace == "" || c.namespaces == nil {
		return nil
	}
	e := c.cache.Get(c.namespaces, "", c.Namespace)
	if e == nil {
		if _, err := c.sync(c.ctx); err != nil {
			return err
		}
		if e = c.cache.Get(c.namespaces, "", c.Namespace); e == nil {
			return apierrors.NewNotFound(c.namespaces.GR(), c.Namespace)
		}
	}
	ns, ok := e.Object.(*corev1.Namespace)
	if !ok || ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	err := apierrors.NewForbidden(c.gr(), name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", c.Namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", c.Namespace),
		Field:   "metadata.namespace",
	})
	return err
}

func (c *call) mayDelete() error {
	if c.row.Permanent == nil {
		return nil
	}
	if err := c.row.Permanent(c.Name); err != nil {
		return apierrors.NewForbidden(c.gr(), c.Name, err)
	}
	return nil
}

// errNoAdmission is returned for every write to a registry without an admission chain: no write goes unchecked.
var errNoAdmission = apierrors.NewInternalError(errors.New("the registry has no admission chain"))

func (c *call) attributes(obj, old runtime.Object, name string, op admission.Operation,
	o runtime.Object) admission.Attributes {
	gvk, namespace := c.Resource.GroupVersionKind, c.Namespace
	if s := c.Resource.Subresource(c.Subresource); s != nil {
		gvk = s.GroupVersionKind
	}
	if c.row == c.namespaces {
		namespace = name
	}
	return admission.NewAttributesRecord(obj, old, gvk, namespace, name, c.Resource.GVR(), c.Subresource, op, o, c.dry,
		c.user)
}

// admit runs mutating admission on an object of the internal version. obj may be changed.
func (c *call) admit(obj, old runtime.Object, op admission.Operation, o runtime.Object) error {
	if c.admission == nil {
		return errNoAdmission
	}
	p, ok := c.admission.(admission.MutationInterface)
	if !ok || !p.Handles(op) {
		return nil
	}
	return status(p.Admit(c.ctx, c.attributes(obj, old, c.Name, op, o), c.objects()), c.gr(), c.Name)
}

// admitCreate runs mutating and validating admission for a create on a subresource, before anything is written.
func (c *call) admitCreate(obj runtime.Object, o *metav1.CreateOptions) error {
	if err := c.admit(obj, nil, admission.Create, o); err != nil {
		return err
	}
	return c.validate(obj, nil, c.Name, admission.Create, o)
}

// AdmitConnect runs admission on a connection to a subresource. options have the internal version.
func (r *Registry) AdmitConnect(ctx context.Context, t Target, options runtime.Object) error {
	c, err := r.begin(ctx, t, "connect", nil)
	if err != nil {
		return err
	}
	if err := c.admit(options, nil, admission.Connect, nil); err != nil {
		return err
	}
	return c.validate(options, nil, c.Name, admission.Connect, nil)
}

// validate runs validating admission on the object about to be written. Plugins must not change it.
func (c *call) validate(obj, old runtime.Object, name string, op admission.Operation, o runtime.Object) error {
	if c.admission == nil {
		return errNoAdmission
	}
	p, ok := c.admission.(admission.ValidationInterface)
	if !ok || !p.Handles(op) {
		return nil
	}
	return status(p.Validate(c.ctx, c.attributes(obj, old, name, op, o), c.objects()), c.gr(), name)
}

func (c *call) allowed(verb string) error {
	p := c.authorizer.Load()
	if p == nil {
		return nil
	}
	a := authorizer.AttributesRecord{
		User: c.user, Verb: verb, Namespace: c.Namespace, APIGroup: c.Resource.Group, APIVersion: c.Resource.Version,
		Resource: c.Resource.Plural, Subresource: c.Subresource, Name: c.Name, ResourceRequest: true,
	}
	decision, reason, err := (*p).Authorize(c.ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	who := ""
	if c.user != nil {
		who = c.user.GetName()
	}
	msg := fmt.Errorf("User %q cannot %s resource %q in API group %q", who, verb, c.Resource.Plural, c.Resource.Group)
	if c.Namespace != "" {
		msg = fmt.Errorf("%w in the namespace %q", msg, c.Namespace)
	} else {
		msg = fmt.Errorf("%w at the cluster scope", msg)
	}
	if reason != "" {
		msg = fmt.Errorf("%w: %s", msg, reason)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: c.Resource.Group, Resource: c.Resource.Plural}, c.Name, msg)
}
