package engine

import (
	"context"
	"errors"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNoScale means that a kind lacks the scale subresource.
var ErrNoScale = errors.New("the server could not find the requested resource")

// Scale reads the scale of an object of any kind. Its error is ErrNoScale, a not-found error, or another API error.
func Scale(ctx context.Context, c client.Client, gvk schema.GroupVersionKind,
	key client.ObjectKey) (*autoscalingv1.Scale, error) {
	of, sub := scaleOf(gvk, key)
	err := c.SubResource("scale").Get(ctx, of, sub)
	if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) && !names(err, key.Name) {
		return nil, ErrNoScale
	}
	if err != nil {
		return nil, err
	}
	var out autoscalingv1.Scale
	return &out, runtime.DefaultUnstructuredConverter.FromUnstructured(sub.Object, &out)
}

// WriteScale writes the scale of an object of any kind. It fails with a conflict if the object has changed since the
// scale was read.
func WriteScale(ctx context.Context, c client.Client, gvk schema.GroupVersionKind, scale *autoscalingv1.Scale) error {
	of, sub := scaleOf(gvk, client.ObjectKeyFromObject(scale))
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(scale)
	if err != nil {
		return err
	}
	sub.Object = body
	sub.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	return c.SubResource("scale").Update(ctx, of, client.WithSubResourceBody(sub))
}

// scaleOf returns an object and its scale, by name. HTTP clients require that both are unstructured or neither is.
func scaleOf(gvk schema.GroupVersionKind, key client.ObjectKey) (of, sub *unstructured.Unstructured) {
	of, sub = &unstructured.Unstructured{}, &unstructured.Unstructured{}
	of.SetGroupVersionKind(gvk)
	sub.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	for _, o := range []*unstructured.Unstructured{of, sub} {
		o.SetNamespace(key.Namespace)
		o.SetName(key.Name)
	}
	return of, sub
}

// names reports whether a not-found error is about the object with that name, not about a path that is not served.
func names(err error, name string) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && s.Status().Details != nil && s.Status().Details.Name == name
}
