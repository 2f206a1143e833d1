package registry

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage"

	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// maxCauses is the maximum number of objects named in an error, as upstream.
const maxCauses = 100

// unreadable returns an error if the call's object cannot be decrypted or decoded, and nil otherwise.
func (c *call) unreadable() error {
	if u, ok := c.cache.UnreadableAt(c.row.Key(c.Namespace, c.Name)); ok {
		return StoreReadError(c.gr(), []cache.Unreadable{u})
	}
	return nil
}

// StoreReadError is upstream's response if stored objects cannot be read (KEP-3926).
func StoreReadError(gr schema.GroupResource, broken []cache.Unreadable) error {
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s: %v", gr, broken[0].Key, broken[0].Err)
	if n := len(broken) - 1; n > 0 {
		message += fmt.Sprintf(" (and %d more)", n)
	}
	details := &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource}
	for i, u := range broken {
		if i == maxCauses {
			details.Causes = append(details.Causes, metav1.StatusCause{
				Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated",
			})
			break
		}
		details.Causes = append(details.Causes, metav1.StatusCause{
			Type:    metav1.CauseTypeUnexpectedServerResponse,
			Field:   u.Key,
			Message: u.Err.Error(),
		})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: details, Message: message,
	}}
}

// removeUnreadable deletes an object that cannot be decrypted or decoded, and rejects any other. As upstream
// (KEP-3926), it ignores finalizers, preconditions and admission, and needs its own permission.
func (c *call) removeUnreadable() (Result, int64, error) {
	if err := c.mayRemoveUnreadable(); err != nil {
		return Result{}, 0, err
	}
	if _, err := c.sync(c.ctx); err != nil {
		return Result{}, 0, err
	}
	key := c.row.Key(c.Namespace, c.Name)
	u, ok := c.cache.UnreadableAt(key)
	switch {
	case !ok && c.entry() == nil:
		return Result{}, 0, apierrors.NewNotFound(c.gr(), c.Name)
	case !ok:
		return Result{}, 0, apierrors.NewConflict(c.gr(), c.Name,
			storage.NewInvalidObjError(key, "unsafe deletion is not allowed because the object is decodable from storage"))
	}
	done := Result{Object: &metav1.Status{
		Status:  metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: c.Name, Group: c.Resource.Group, Kind: c.Resource.Plural},
	}}
	if c.dry {
		return done, 0, nil
	}
	rev, err := c.store.Delete(c.ctx, key, u.Revision)
	if errors.Is(err, store.ErrConflict) {
		return Result{}, 0, apierrors.NewConflict(c.gr(), c.Name, errModified)
	}
	return done, rev, status(err, c.gr(), c.Name)
}

const unsafeDelete = "unsafe-delete-ignore-read-errors"

func (c *call) mayRemoveUnreadable() error {
	p := c.authorizer.Load()
	if p == nil || c.user == nil {
		return nil
	}
	decision, reason, err := (*p).Authorize(c.ctx, authorizer.AttributesRecord{
		User: c.user, Verb: unsafeDelete, Namespace: c.Namespace, Name: c.Name,
		APIGroup: c.Resource.Group, APIVersion: c.Resource.Version, Resource: c.Resource.Plural, ResourceRequest: true,
	})
	switch {
	case err != nil:
		return apierrors.NewForbidden(c.gr(), c.Name,
			fmt.Errorf("error while checking permission for %q, %w", unsafeDelete, err))
	case decision != authorizer.DecisionAllow:
		return apierrors.NewForbidden(c.gr(), c.Name, fmt.Errorf("not permitted to do %q, reason: %s", unsafeDelete, reason))
	}
	return nil
}
