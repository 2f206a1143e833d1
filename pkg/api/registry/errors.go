package registry

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// errModified has upstream's message for a conflict, which clients show to users.
var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try " +
	"again")

// status converts any error to a Status error. It is the only place where errors of the store and the cache are mapped
// to HTTP codes.
func status(err error, gr schema.GroupResource, name string) error {
	var already apierrors.APIStatus
	switch {
	case err == nil || errors.As(err, &already):
		return err
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(gr, name, errModified)
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, store.ErrCompacted), errors.Is(err, cache.ErrExpired):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrFull):
		// RFC 4918, section 11.5. Unlike 503, clients do not retry it on their own.
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
			Message: err.Error(),
		}}
	case errors.Is(err, store.ErrUnavailable):
		return apierrors.NewServiceUnavailable(err.Error())
	case errors.Is(err, kind.ErrDecode):
		return apierrors.NewInternalError(err)
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	case errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("the request was cancelled by its caller", 0)
	}
	return apierrors.NewInternalError(err)
}

// lostRace reports whether a write failed because the stored revision was not the expected one.
func lostRace(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists)
}
