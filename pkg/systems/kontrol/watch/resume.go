package watch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// position is the resourceVersion up to which all changes of a cluster are known. A watch can resume there even
// after hours, while the cluster retains the changes since. Without a version a list must come first.
type position struct {
	cluster types.UID // empty if the credentials may not read it
	version string
	sure    time.Time // when the cluster last proved to have the history up to version
}

const (
	// doubt is the age after which a watch resumes only if the cluster proves to have the same history: a cluster
	// restored from a backup may have passed the same version with another history.
	doubt = time.Hour
	// witnesses is how many objects are read for that proof.
	witnesses = 8
)

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
	if w.reached.version == "" || id == "" || w.reached.cluster != id {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	l := w.newList()
	if err := c.List(ctx, l, &client.ListOptions{LabelSelector: selector, Limit: 1}); err != nil {
		return false, err
	}
	if older(l.GetResourceVersion(), w.reached.version) {
		return false, nil
	}
	if time.Since(w.reached.sure) <= doubt {
		return true, nil
	}
	return w.witnessed(ctx, c)
}

// witnessed looks for an object that the cluster still has in the known version, latest first. The histories are
// equal up to that version, so the watch resumes there and repeats later changes. Objects checked before may have
// become newer, but must not be missing or older: then the cluster may not have reached their versions. It does
// not detect an object that was deleted since and exists again.
func (w *watcher) witnessed(ctx context.Context, c client.WithWatch) (bool, error) {
	began := time.Now()
	for _, at := range w.latest(witnesses, w.reached.version) {
		known := w.version(at)
		o, err := w.get(ctx, c, at)
		if err != nil {
			return false, err
		}
		if o == nil || older(o.GetResourceVersion(), known) {
			return false, nil
		}
		if known != "" && o.GetResourceVersion() == known {
			w.reached.version, w.reached.sure = known, began
			return true, nil
		}
	}
	return false, nil
}

// latest returns up to n objects with the highest versions not above until, highest first.
func (w *watcher) latest(n int, until string) (list []types.NamespacedName) {
	last, err := strconv.ParseUint(until, 10, 64)
	if err != nil {
		return nil
	}
	type changed struct {
		version uint64
		at      types.NamespacedName
	}
	var all []changed
	w.mu.Lock()
	for at, i := range w.items {
		if v, err := strconv.ParseUint(i.version, 10, 64); err == nil && v <= last {
			all = append(all, changed{v, at})
		}
	}
	w.mu.Unlock()
	slices.SortFunc(all, func(a, b changed) int { return cmp.Compare(b.version, a.version) })
	for _, c := range all[:min(n, len(all))] {
		list = append(list, c.at)
	}
	return list
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
