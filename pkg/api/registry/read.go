package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// futureWait is how long a read waits for a revision that has not been reached yet, as upstream.
const futureWait = 3 * time.Second

// Get reads one object. Without a resourceVersion it reflects every write acknowledged before the call. "0" reads the
// cache as it is; N waits until the cache has reached revision N.
func (r *Registry) Get(ctx context.Context, t Target, o metav1.GetOptions) (Result, error) {
	c, err := r.begin(ctx, t, "get", nil)
	if err != nil {
		return Result{}, err
	}
	rev, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return Result{}, err
	}
	if err := c.reach(o.ResourceVersion, rev); err != nil {
		return Result{}, err
	}
	e := c.entry()
	if e == nil {
		return Result{}, c.notFound()
	}
	switch s := c.Resource.Subresource(c.Subresource); {
	case c.Subresource == "" || c.Subresource == "status" && c.Resource.Status != nil || s != nil && s.Update != nil:
		return c.show(e)
	case s != nil && s.Scale != nil:
		return c.getScale(e, s.Scale)
	}
	return Result{}, c.noSubresource()
}

func parseRevision(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid resource version: " +
			field.Invalid(field.NewPath("resourceVersion"), s, err.Error()).Error())
	}
	return int64(min(n, math.MaxInt64)), nil
}

// reach waits until the cache is recent enough for a read with the given resourceVersion.
func (c *call) reach(asked string, rev int64) error {
	switch {
	case asked == "":
		_, err := c.sync(c.ctx)
		return err
	case rev <= c.cache.Revision():
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, futureWait)
	defer cancel()
	err := c.cache.WaitFor(ctx, rev)
	if errors.Is(err, context.DeadlineExceeded) {
		return storage.NewTooLargeResourceVersionError(uint64(rev), uint64(c.cache.Revision()), 1)
	}
	return status(err, c.gr(), c.Name)
}

// Limits on a selector, which is evaluated for each event of a watch. A requirement with many values counts as one.
const (
	maxSelectorBytes = 128 << 10
	maxSelectorTerms = 1000
)

func (c *call) query(o *metav1.ListOptions) (q cache.Query, err error) {
	q.Namespace = c.Namespace
	if len(o.LabelSelector) > maxSelectorBytes || len(o.FieldSelector) > maxSelectorBytes {
		return q, apierrors.NewBadRequest(fmt.Sprintf("a selector may have at most %d bytes", maxSelectorBytes))
	}
	if q.Labels, err = labels.Parse(o.LabelSelector); err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	if terms, _ := q.Labels.Requirements(); len(terms) > maxSelectorTerms {
		return q, apierrors.NewBadRequest(fmt.Sprintf("a label selector may have at most %d requirements", maxSelectorTerms))
	}
	if q.Fields, err = fields.ParseSelector(o.FieldSelector); err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	if q.Fields, err = c.Resource.Selector(q.Fields); err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	return q, nil
}

func all(q cache.Query) bool {
	return (q.Labels == nil || q.Labels.Empty()) && (q.Fields == nil || q.Fields.Empty())
}

// checkOptions validates the options of lists and watches as upstream does.
func checkOptions(o *metav1.ListOptions, watch bool) error {
	in := &internalversion.ListOptions{
		Watch: watch, ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch,
		Limit: o.Limit, Continue: o.Continue, SendInitialEvents: o.SendInitialEvents,
	}
	if errs := listvalidation.ValidateListOptions(in, true); len(errs) > 0 {
		return apierrors.NewInvalid(metaKind("ListOptions"), "", errs)
	}
	if o.Limit < 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("limit must not be negative, not %d", o.Limit))
	}
	return nil
}

// Watch starts a watch. The caller sends initial as ADDED events (followed by a bookmark with the annotation
// k8s.io/initial-events-end at revision sync if o.SendInitialEvents is set), then the watcher's events. The
// watcher's entries have the stored version; As converts them to the requested one. Without initial events, a watch
// may start at a future revision: events up to it are not sent.
func (r *Registry) Watch(ctx context.Context, t Target,
	o metav1.ListOptions) (w *cache.Watcher, initial []*cache.Entry, sync int64, err error) {
	c, err := r.begin(ctx, t, "watch", nil)
	if err != nil {
		return nil, nil, 0, err
	}
	if err := checkOptions(&o, true); err != nil {
		return nil, nil, 0, err
	}
	q, err := c.query(&o)
	if err != nil {
		return nil, nil, 0, err
	}
	rev, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, nil, 0, err
	}
	state := rev == 0
	if o.SendInitialEvents != nil {
		state = *o.SendInitialEvents
	}
	if state || o.ResourceVersion == "" {
		if err := c.reach(o.ResourceVersion, rev); err != nil {
			return nil, nil, 0, err
		}
	}
	from := rev
	if state || rev == 0 {
		from = -1
	}
	if broken := c.cache.Unreadable(c.row.Prefix(c.Namespace)); state && len(broken) > 0 {
		return nil, nil, 0, StoreReadError(c.gr(), broken)
	}
	w, initial, sync, err = c.cache.Watch(c.selecting(), q, from)
	switch {
	case errors.Is(err, cache.ErrExpired):
		return nil, nil, 0, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rev,
			c.cache.Revision()))
	case err != nil:
		return nil, nil, 0, status(err, c.gr(), "")
	case !state:
		initial = nil
	}
	if initial, err = asAll(c.Resource, initial); err != nil {
		w.Close()
		return nil, nil, 0, err
	}
	return w, initial, sync, nil
}
