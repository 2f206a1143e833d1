package watch

import (
	"context"
	"errors"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// position is the resourceVersion up to which all changes of a cluster are known. A watch can resume there while the
// cluster retains the changes since. Without a version a list must come first.
type position struct {
	cluster types.UID // empty if the credentials may not read it
	version string
	at      time.Time // of the list, or of the last event or bookmark
}

// doubt is the age of a position after which a list comes first: a cluster that was restored from a backup meanwhile
// may have passed the same version with another history. Most clusters have compacted the changes by then anyway.
const doubt = 10 * time.Minute

// identityNamespace exists as long as its cluster does. Its UID identifies the cluster.
const identityNamespace = "kube-system"

// identify returns the cluster's UID, or empty if the credentials may not read it. The cluster behind an address
// or a tunnel may have been replaced, and resourceVersions of different clusters cannot be compared.
func identify(ctx context.Context, c client.WithWatch) (types.UID, error) {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	err := c.Get(ctx, client.ObjectKey{Name: identityNamespace}, ns)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return "", nil
	}
	return ns.UID, err
}

// next resumes the watch where the last one ended, if the cluster is the same, or else lists first. It returns
// when the watch ends.
func (w *watcher) next(ctx context.Context, c client.WithWatch, g *guards) error {
	id, err := identify(ctx, c)
	if err != nil {
		return err
	}
	goesOn, err := w.goesOn(ctx, c, id)
	if err != nil {
		return err
	}
	if !goesOn {
		began := time.Now()
		version, err := w.list(ctx, c)
		if err != nil {
			return err
		}
		w.reached = position{id, version, began}
	}
	g.update()
	return w.watch(ctx, c, g)
}

// goesOn reports whether the watch can resume at w.reached. It checks that the cluster has reached that version: a
// restored cluster may not have, and would send nothing until then instead of an error.
func (w *watcher) goesOn(ctx context.Context, c client.WithWatch, id types.UID) (bool, error) {
	if w.reached.version == "" || id == "" || w.reached.cluster != id || time.Since(w.reached.at) > doubt {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	l := w.newList()
	if err := c.List(ctx, l, &client.ListOptions{LabelSelector: selector, Limit: 1}); err != nil {
		return false, err
	}
	return !older(l.GetResourceVersion(), w.reached.version), nil
}

// useless reports whether the next watch cannot resume after an error.
func useless(err error) bool {
	return errors.Is(err, errExpired) || errors.Is(err, errTooMany) || meta.IsNoMatchError(err)
}

// older compares two versions of the same cluster (KEP-5504). It returns false if either is not a number.
func older(version, than string) bool {
	a, err1 := strconv.ParseUint(version, 10, 64)
	b, err2 := strconv.ParseUint(than, 10, 64)
	return err1 == nil && err2 == nil && a < b
}
