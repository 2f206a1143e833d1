package rest

import (
	"context"
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
)

// Cluster reads and writes the cluster's objects with the rights of the client's user. The in-process client does not
// authorize, so each call is first checked with a SelfSubjectAccessReview; a denial becomes status 403. What Get and
// List return is immutable below the first level.
type Cluster struct{ client client.Interface }

// allowed returns an error with status 403 if the user has no such right.
func (c Cluster) allowed(ctx context.Context, verb string, obj ctrl.Object, namespace, name, sub string) error {
	mapping, err := c.resource(obj)
	if err != nil {
		return err
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: mapping.Group, Version: mapping.Version, Resource: mapping.Resource,
			Subresource: sub, Name: name,
		},
	}}
	if err := c.client.Create(ctx, review); err != nil {
		return err
	}
	if review.Status.Allowed {
		return nil
	}
	return apierrors.NewForbidden(mapping.GroupResource(), name, errNotGranted{verb})
}

type errNotGranted struct{ verb string }

func (e errNotGranted) Error() string {
	return "user " + User + " may not " + e.verb + " it: see the ClusterRole of that name"
}

func (c Cluster) resource(obj ctrl.Object) (schema.GroupVersionResource, error) {
	gvk, err := c.client.GroupVersionKindFor(obj)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	m, err := c.client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	return m.Resource, nil
}

// Get reads an object.
func (c Cluster) Get(ctx context.Context, namespace, name string, into ctrl.Object) error {
	if err := c.allowed(ctx, "get", into, namespace, name, ""); err != nil {
		return err
	}
	return c.client.Get(ctx, ctrl.ObjectKey{Namespace: namespace, Name: name}, into)
}

// List reads the objects of a kind. kind is any value of that type.
func (c Cluster) List(ctx context.Context, kind ctrl.Object, into ctrl.ObjectList, opts ...ctrl.ListOption) error {
	o := (&ctrl.ListOptions{}).ApplyOptions(opts)
	if err := c.allowed(ctx, "list", kind, o.Namespace, "", ""); err != nil {
		return err
	}
	return c.client.List(ctx, into, opts...)
}

// Create creates an object.
func (c Cluster) Create(ctx context.Context, obj ctrl.Object) error {
	if err := c.allowed(ctx, "create", obj, obj.GetNamespace(), obj.GetName(), ""); err != nil {
		return err
	}
	return c.client.Create(ctx, obj)
}

// CreateIn creates an object, and its namespace if there is none: to Podling's clients a namespace is only a name.
func (c Cluster) CreateIn(ctx context.Context, obj ctrl.Object) error {
	err := c.Create(ctx, obj)
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil ||
		status.Status().Details.Kind != "namespaces" {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: obj.GetNamespace(), Labels: map[string]string{view.Managed: "true"},
	}}
	if err := c.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return c.Create(ctx, obj)
}

// Update replaces an object.
func (c Cluster) Update(ctx context.Context, obj ctrl.Object) error {
	if err := c.allowed(ctx, "update", obj, obj.GetNamespace(), obj.GetName(), ""); err != nil {
		return err
	}
	return c.client.Update(ctx, obj)
}

// UpdateStatus replaces an object's status.
func (c Cluster) UpdateStatus(ctx context.Context, obj ctrl.Object) error {
	if err := c.allowed(ctx, "update", obj, obj.GetNamespace(), obj.GetName(), "status"); err != nil {
		return err
	}
	return c.client.Status().Update(ctx, obj)
}

// Bind assigns a pod that has no node yet to a node.
func (c Cluster) Bind(ctx context.Context, p *corev1.Pod, node string) error {
	if err := c.allowed(ctx, "create", p, p.Namespace, p.Name, "binding"); err != nil {
		return err
	}
	return c.client.SubResource("binding").Create(ctx, p, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
}

// Delete deletes an object. It fails if another object has taken its name.
func (c Cluster) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	if err := c.allowed(ctx, "delete", obj, obj.GetNamespace(), obj.GetName(), ""); err != nil {
		return err
	}
	if uid := obj.GetUID(); uid != "" {
		opts = append(opts, ctrl.Preconditions{UID: &uid})
	}
	return c.client.Delete(ctx, obj, opts...)
}

// WatchTask watches the changes of a task after its resourceVersion.
func (c Cluster) WatchTask(ctx context.Context, t *taskapi.Task) (watch.Interface, error) {
	if err := c.allowed(ctx, "watch", t, t.Namespace, t.Name, ""); err != nil {
		return nil, err
	}
	return c.client.Watch(ctx, &taskapi.TaskList{}, &ctrl.ListOptions{
		Namespace: t.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", t.Name),
		Raw: &metav1.ListOptions{ResourceVersion: t.ResourceVersion},
	})
}

// ReadLogs returns an error if the user may not read the logs of a pod.
func (c Cluster) ReadLogs(ctx context.Context, namespace, name string) error {
	return c.allowed(ctx, "get", &corev1.Pod{}, namespace, name, "log")
}
