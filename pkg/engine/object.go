package engine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Each returns the function of a reconciler whose requests are names of objects of one kind. It reads the object from
// the cache and calls f, unless the object does not exist. The object is immutable below its first level. An error of f
// is ignored if it only says that the object no longer exists or that its namespace is being deleted: a later event
// enqueues the object again if it is recreated.
func Each[T any, P interface {
	*T
	client.Object
}](env Env, f func(ctx context.Context, o P) (Result, error)) Func {
	return EachOf(env, func() P { return new(T) }, f)
}

// EachOf is Each for a kind that is only known at run time. empty returns a new object of the kind.
func EachOf[O client.Object](env Env, empty func() O, f func(ctx context.Context, o O) (Result, error)) Func {
	return func(ctx context.Context, req Request) (Result, error) {
		o := empty()
		if err := env.Cache.Get(ctx, req.NamespacedName, o); err != nil {
			return Result{}, client.IgnoreNotFound(err)
		}
		res, err := f(ctx, o)
		if err != nil && ends(req, err) {
			return res, nil
		}
		return res, err
	}
}

// ends reports whether every error in err says that the request's object is gone or that its namespace is terminating.
func ends(req Request, err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(one error) bool { return !ends(req, one) })
	case interface{ Unwrap() error }:
		return ends(req, e.Unwrap())
	}
	return apierrors.IsNotFound(err) && names(err, req.Name) || req.Namespace != "" && Terminating(err)
}

// Terminating reports whether a create failed because the namespace is being deleted.
func Terminating(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// SetStatus writes an object's status if it differs from want. status is the address of o's status, and o is a copy
// that the caller may change at the first level, as Each and the cache's lists return.
func SetStatus[S any](ctx context.Context, c client.Client, o client.Object, status *S, want S) error {
	if equality.Semantic.DeepEqual(*status, want) {
		return nil
	}
	*status = want
	next, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	return c.Status().Update(ctx, next)
}

// Find reads an object. It returns nil if the object does not exist.
func Find[T any, P interface {
	*T
	client.Object
}](ctx context.Context, from client.Reader, namespace, name string) (P, error) {
	o := P(new(T))
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// Remove deletes the observed object, in any version. An object that was deleted or replaced meanwhile is no error.
func Remove(ctx context.Context, c client.Client, o client.Object, options ...client.DeleteOption) error {
	err := c.Delete(ctx, o, append(options, Preconditions(o))...)
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// RequestsIn is Requests for a list whose kind is only known at run time.
func RequestsIn(list client.ObjectList, is func(client.Object) bool) (out []Request) {
	_ = meta.EachListItem(list, func(item runtime.Object) error { // it fails only for objects that are not lists
		if o, ok := item.(client.Object); ok && (is == nil || is(o)) {
			out = append(out, RequestFor(o.GetNamespace(), o.GetName()))
		}
		return nil
	})
	return out
}

// Requests returns the names of the items for which is returns true. A nil is means all.
func Requests[T any, P interface {
	*T
	client.Object
}](items []T, is func(P) bool) []Request {
	out := make([]Request, 0, len(items))
	for i := range items {
		if o := P(&items[i]); is == nil || is(o) {
			out = append(out, RequestFor(o.GetNamespace(), o.GetName()))
		}
	}
	return out
}
