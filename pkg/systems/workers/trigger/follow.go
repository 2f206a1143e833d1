package trigger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

const (
	// Component records the events about messages and triggers.
	Component = "message-queues"
	// askEvery is how long a permission counts that was checked.
	askEvery = 10 * time.Second
)

// run sends changes until ctx is done.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		// A watch that fell behind the cache can often resume, from the store's history.
		if err := f.watch(ctx); err != nil && ctx.Err() == nil && !apierrors.IsResourceExpired(err) {
			f.fail(ctx, err.Error())
		}
		backoff.Sleep(ctx, cmp.Or(f.retry, retryAfter))
	}
}

// watch sends changes until ctx is done or something fails. Then it can be called again.
func (f *follower) watch(ctx context.Context) error {
	f.asked = time.Time{}
	if err := f.find(); err != nil {
		return err
	}
	if err := f.allowed(ctx); err != nil {
		return err
	}
	list, o, err := f.query()
	if err != nil {
		return err
	}
	if f.reached() == "" { // a new trigger begins now
		first := *o
		first.Limit = 1
		if err := f.Client.List(ctx, list, &first); err != nil {
			return err
		}
		f.reach(list.GetResourceVersion(), 0)
	}
	o.Raw = &metav1.ListOptions{ResourceVersion: f.reached(), AllowWatchBookmarks: true}
	w, err := f.Client.Watch(ctx, list, o)
	if f.gap = apierrors.IsResourceExpired(err); f.gap {
		f.Events.Event(f.w, corev1.EventTypeWarning, "ChangesLost", "The changes of %s objects after version %s are gone: "+
			"the objects that changed are sent as MODIFIED, deleted ones are not", f.kind.Kind, f.reached())
		o.Raw = &metav1.ListOptions{
			SendInitialEvents: new(true), AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		}
		w, err = f.Client.Watch(ctx, list, o)
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	f.fail(ctx, "")
	var missed []ctrl.Object
	for e := range w.ResultChan() {
		o, ok := e.Object.(ctrl.Object)
		switch {
		case !ok:
			return apierrors.FromObject(e.Object)
		case f.gap && e.Type != watch.Bookmark:
			if compare(o.GetResourceVersion(), f.reached()) > 0 {
				missed = append(missed, o)
			}
			continue
		case f.gap: // the objects end
			slices.SortFunc(missed, byVersion)
			for _, o := range missed {
				if err := f.take(ctx, watch.Modified, o); err != nil {
					return err
				}
			}
			f.gap, missed = false, nil
		}
		if err := f.take(ctx, e.Type, o); err != nil {
			return err
		}
	}
	return nil
}

// compare compares versions of one cluster. What is not a version is new.
func compare(a, b string) int {
	n, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return n
}

func byVersion(a, b ctrl.Object) int { return compare(a.GetResourceVersion(), b.GetResourceVersion()) }

// find finds the trigger's kind and its resource.
func (f *follower) find() error {
	t := f.trigger()
	f.kind = schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
	m, err := f.Client.RESTMapper().RESTMapping(f.kind.GroupKind(), f.kind.Version)
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the server has no kind %s in %s: see `coracle ctl api-resources`", t.Kind, t.APIVersion)
	case err != nil:
		return err
	case m.Scope.Name() != meta.RESTScopeNameNamespace:
		return fmt.Errorf("%s objects have no namespace: a trigger sends only objects in the namespace of its worker",
			t.Kind)
	}
	f.resource = m.Resource
	return nil
}

// query returns an empty list of the kind, and the options that select the trigger's objects. Lists of Go types share
// their objects with the cache, so a follower that waits for the queue holds no object of its own.
func (f *follower) query() (list ctrl.ObjectList, o *ctrl.ListOptions, err error) {
	o = &ctrl.ListOptions{Namespace: f.w.Namespace}
	if s := f.trigger().Selector; s != nil {
		if o.LabelSelector, err = metav1.LabelSelectorAsSelector(s); err != nil {
			return nil, nil, err
		}
	}
	if o.FieldSelector, err = fields.ParseSelector(f.trigger().FieldSelector); err != nil {
		return nil, nil, err
	}
	kind := f.kind.GroupVersion().WithKind(f.kind.Kind + "List")
	if made, err := f.Client.Scheme().New(kind); err == nil {
		if list, ok := made.(ctrl.ObjectList); ok {
			return list, o, nil
		}
	}
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(kind)
	return u, o, nil
}

// allowed returns an error unless the worker's service account may list and watch the resource.
func (f *follower) allowed(ctx context.Context) error {
	if time.Since(f.asked) < cmp.Or(f.ask, askEvery) {
		return nil
	}
	ns := f.w.Namespace
	for _, verb := range []string{"list", "watch"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   serviceaccount.MakeUsername(ns, f.account()),
			Groups: append(serviceaccount.MakeGroupNames(ns), user.AllAuthenticated),
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ns, Verb: verb, Group: f.resource.Group, Version: f.resource.Version, Resource: f.resource.Resource,
			},
		}}
		if err := f.Client.Create(ctx, review); err != nil {
			return fmt.Errorf("could not check the permission of service account %s: %w", f.account(), err)
		}
		if !review.Status.Allowed {
			return fmt.Errorf("service account %[1]s may not %[2]s %[3]s: `coracle ctl create role NAME -n %[4]s "+
				"--verb=list,watch --resource=%[3]s` and `coracle ctl create rolebinding NAME -n %[4]s --role=NAME "+
				"--serviceaccount=%[4]s:%[1]s` allow it", f.account(), verb, f.resource.GroupResource(), ns)
		}
	}
	f.asked = time.Now()
	return nil
}

// take sends the message of a change, if the trigger wants it, and advances the version. While the queue refuses the
// message it reads no further changes.
func (f *follower) take(ctx context.Context, t watch.EventType, o ctrl.Object) error {
	for {
		if err := f.allowed(ctx); err != nil { // also for bookmarks, so that the status shows it without changes
			return err
		}
		if !f.wants(t) || ofMessages(o) {
			f.reach(o.GetResourceVersion(), idlePause)
			return nil
		}
		m, err := f.message(t, o)
		if err == nil {
			err = f.Send(ctx, f.name(), m)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			f.fail(ctx, "")
		case apierrors.IsRequestEntityTooLargeError(err):
			f.fail(ctx, fmt.Sprintf("%s in version %s was left out: %v", o.GetName(), o.GetResourceVersion(), err))
		default:
			f.fail(ctx, err.Error())
			backoff.Sleep(ctx, cmp.Or(f.retry, retryAfter))
			continue
		}
		f.reach(o.GetResourceVersion(), busyPause)
		return nil
	}
}

// wants reports whether the trigger sends a kind of change. After a gap, an object that was added is a modified one.
func (f *follower) wants(t watch.EventType) bool {
	has := func(c workers.ObjectChange) bool {
		return len(f.trigger().Changes) == 0 || slices.Contains(f.trigger().Changes, c)
	}
	return t == watch.Added && has(workers.ObjectAdded) || t == watch.Deleted && has(workers.ObjectDeleted) ||
		t == watch.Modified && (has(workers.ObjectModified) || f.gap && has(workers.ObjectAdded))
}

// ofMessages reports whether an object is an Event about messages, which a message about it could cause again.
func ofMessages(o ctrl.Object) bool {
	switch e := o.(type) {
	case *corev1.Event:
		return e.ReportingController == Component
	case *eventsv1.Event:
		return e.ReportingController == Component
	}
	return false
}

// message returns the message of a change. Its DedupID is the same whenever and by whomever it is sent: an object has
// another version after each change, also after its deletion.
func (f *follower) message(t watch.EventType, o ctrl.Object) (queue.Message, error) {
	f.encoders <- struct{}{}
	defer func() { <-f.encoders }()
	payload, err := json.Marshal(struct { // as the API's watch events
		Type   watch.EventType `json:"type"`
		Object ctrl.Object     `json:"object"`
	}{t, f.bare(o)})
	if err == nil && len(payload) > workers.MaxPayload {
		err = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("its message has %d bytes, of at most %d", len(payload),
			workers.MaxPayload))
	}
	return queue.Message{
		DedupID:     fmt.Sprintf("trigger %s %d %s %s", f.w.UID, f.index, o.GetUID(), o.GetResourceVersion()),
		ContentType: "application/json", Payload: payload,
	}, err
}

// bare returns a copy of a cached object without managedFields. It shares memory with the object.
func (f *follower) bare(o ctrl.Object) (own ctrl.Object) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		object := maps.Clone(u.Object)
		if m, ok := object["metadata"].(map[string]any); ok {
			object["metadata"] = maps.Clone(m)
		}
		own = &unstructured.Unstructured{Object: object}
	} else {
		v := reflect.New(reflect.TypeOf(o).Elem())
		v.Elem().Set(reflect.ValueOf(o).Elem())
		own = v.Interface().(ctrl.Object)
	}
	own.GetObjectKind().SetGroupVersionKind(f.kind)
	own.SetManagedFields(nil)
	return own
}
