package garbage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// readTimeout limits how long the objects of one kind are read for an owner. A retry starts from the beginning,
// but finds the dependents already changed. An owner remains as long as some kind takes longer to read.
const readTimeout = 30 * time.Second

// errReading makes an owner's reconcile retry.
var errReading = errors.New("two lists of the aggregated server are under way; waiting for one to end")

// orphanUnfollowed removes an owner from the references of dependents whose kinds have too many objects to be
// watched. It reads these kinds page by page, and only the owner's namespace if it has one. A conflict means that
// the caller must retry.
func (o *others) orphanUnfollowed(ctx context.Context, owner *metav1.PartialObjectMetadata) error {
	if o == nil {
		return nil
	}
	for k, l := range o.unfollowed() {
		if owner.Namespace != "" && !k.Namespaced {
			continue
		}
		select {
		case l.lists <- struct{}{}:
		default: // lists for other owners are in progress; do not block a worker
			return apierrors.NewConflict(schema.GroupResource{Group: k.Group, Resource: k.Resource}, owner.Name, errReading)
		}
		err := o.orphanAll(ctx, k, owner.Namespace, owner.UID)
		<-l.lists
		if err != nil && !apierrors.IsConflict(err) {
			err = fmt.Errorf("could not remove the owner from the owner references of all %s: %w",
				schema.GroupResource{Group: k.Group, Resource: k.Resource}, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unfollowed returns the kinds with too many objects, and the load of their servers.
func (o *others) unfollowed() map[aggregated.Remote]*load {
	o.mu.Lock()
	defer o.mu.Unlock()
	kinds := map[aggregated.Remote]*load{}
	for k := range o.over {
		kinds[k] = o.loads[k.Server]
	}
	return kinds
}

func (o *others) orphanAll(ctx context.Context, k aggregated.Remote, namespace string, owner types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := o.pages(ctx, k.Kind, namespace, metav1.ListOptions{}, func(items []metav1.PartialObjectMetadata) error {
		for i := range items {
			m := &items[i]
			if !slices.ContainsFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == owner }) {
				continue
			}
			data, err := patchOf(m, map[string]any{"ownerReferences": without(m.OwnerReferences, owner)})
			if err != nil {
				return err
			}
			if err := o.patch(ctx, k.Kind, m, data); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	return err
}
