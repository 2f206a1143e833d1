package registry

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/api/registry/fieldset"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Managed fields are recorded on every write, with the entries that upstream's kube-apiserver would store.
// Upstream's field manager takes several times as long as our create of a pod. Package fieldset computes the same
// result for built-in kinds and new custom resources at a fraction of that cost. Upstream's field manager is used
// for the rest: updates of kinds without a Go type, entries of several versions, clients that write managedFields
// themselves, more than ten managers.
//
// As in upstream, tracking of an object that was stored without managed fields begins with its first server-side
// apply. Managed fields are dropped from objects that would be too large to store with them, and from objects with
// so many fields that upstream's field manager is too expensive.

// manageNew records the manager of an object that is being created. obj has the internal version and its defaults.
func (c *call) manageNew(obj runtime.Object, manager string) error {
	m, err := metaOf(obj)
	if err != nil {
		return err
	}
	versioned, err := c.Resource.External(obj)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	manager = c.manager(manager)
	if manyFields(m) {
		return errManyManaged()
	}
	if m.GetManagedFields() == nil {
		if entries, ok := c.created(versioned, c.writer(manager)); ok {
			m.SetManagedFields(entries)
			return nil
		}
	}
	return c.askUpstream(c.strategy(), c.Resource.New(), versioned, m, manager)
}

// created returns the managed fields of a new object; false if only upstream's field manager can compute them.
func (c *call) created(obj runtime.Object, w fieldset.Writer) ([]metav1.ManagedFieldsEntry, bool) {
	strategy := c.strategy()
	if u, ok := obj.(*unstructured.Unstructured); ok && c.Resource.Types != nil &&
		u.GroupVersionKind() == c.Resource.GroupVersionKind {
		return fieldset.CreatedUntyped(c.Resource.Types, u, resets(strategy)[fieldpath.APIVersion(w.APIVersion)], w)
	}
	if plan := c.plan(strategy); plan != nil {
		return plan.Created(obj, w)
	}
	return nil, false
}

// manage records a write, other than an apply, to the stored object old. obj has the internal version.
func (c *call) manage(strategy any, old *cache.Entry, obj runtime.Object, manager string) error {
	m, err := metaOf(obj)
	if err != nil {
		return err
	}
	shown, err := As(c.Resource, old)
	if err != nil {
		return err
	}
	have, given := shown.Object.GetManagedFields(), m.GetManagedFields()
	// the client writes managed fields itself
	own := c.Subresource == "" && given != nil && !slices.EqualFunc(given, have, sameEntry)
	if len(have) == 0 && !own {
		m.SetManagedFields(nil)
		return nil
	}
	if own && manyFields(m) {
		return errManyManaged()
	}
	versioned, err := c.Resource.External(obj)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	manager = c.manager(manager)
	if !own {
		if plan := c.plan(strategy); plan != nil {
			if entries, ok := plan.Updated(shown.Object, versioned, have, c.writer(manager)); ok {
				m.SetManagedFields(entries)
				return nil
			}
		}
	}
	return c.askUpstream(strategy, shown.Object.DeepCopyObject(), versioned, m, manager)
}

func (c *call) writer(manager string) fieldset.Writer {
	return fieldset.Writer{
		Manager:     manager,
		APIVersion:  c.Resource.GroupVersion().String(),
		Subresource: c.Subresource,
		Time:        time.Now().UTC().Truncate(time.Second),
	}
}

// askUpstream sets in m the managed fields that upstream's field manager records for a change from live to obj.
func (c *call) askUpstream(strategy any, live, obj runtime.Object, m metav1.Object, manager string) error {
	if max(spread(reflect.ValueOf(live)), spread(reflect.ValueOf(obj))) > maxApplied {
		m.SetManagedFields(nil)
		return nil
	}
	f, err := c.fieldManager(strategy)
	if err != nil {
		return err
	}
	live.GetObjectKind().SetGroupVersionKind(c.Resource.GroupVersionKind)
	if u, ok := obj.(*unstructured.Unstructured); ok && metav1.Object(u) == m &&
		u.GroupVersionKind() == c.Resource.GroupVersionKind {
		// It changes nothing else in the object. Entries are decoded and encoded each time they are read from, or set
		// in, an object without a Go type, whose times have no fractions.
		if out, ok := f.UpdateNoErrors(live, u, manager).(*unstructured.Unstructured); !ok || out != u {
			return apierrors.NewInternalError(fmt.Errorf("%s was replaced while its managed fields were recorded", c.gr()))
		}
		return nil
	}
	// The field manager changes obj, which may share memory with m's object.
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(c.Resource.GroupVersionKind)
	out, ok := f.UpdateNoErrors(live, obj, manager).(client.Object)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("the type of %s changed while its managed fields were recorded", c.gr()))
	}
	wholeSeconds(out)
	m.SetManagedFields(out.GetManagedFields())
	return nil
}

// manyFields reports whether the managed fields of an object are more than maxApplied allows: upstream decodes them
// into sorted lists by insertion, so 250,000 keys in descending order take 40 s.
func manyFields(m metav1.Object) bool {
	var squares int64
	for _, entry := range m.GetManagedFields() {
		shape, err := payload.Measure(entry.FieldsV1.GetRawBytes(), &map[string]any{})
		if squares += shape.Maps; err != nil || squares > maxApplied {
			return true
		}
	}
	return false
}

func errManyManaged() error {
	return apierrors.NewRequestEntityTooLargeError("metadata.managedFields has too many fields: leave it out")
}

// sameEntry compares managed fields entries; clients send back those that they read.
func sameEntry(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion &&
		a.Subresource == b.Subresource &&
		a.FieldsType == b.FieldsType && a.Time.Equal(b.Time) && (a.FieldsV1 == nil) == (b.FieldsV1 == nil) &&
		bytes.Equal(a.FieldsV1.GetRawBytes(), b.FieldsV1.GetRawBytes())
}

// wholeSeconds truncates the times of managed fields as encoding does.
func wholeSeconds(obj metav1.Object) {
	entries := obj.GetManagedFields()
	for i := range entries {
		if t := entries[i].Time; t != nil && t.Nanosecond() != 0 {
			entries[i].Time = new(seconds(*t))
		}
	}
	obj.SetManagedFields(entries)
}

// manager returns the given field manager or, if empty, the upstream component that does the same work as the user.
func (c *call) manager(given string) string {
	if given != "" {
		return given
	}
	if c.user == nil || c.user.GetName() == "" {
		return "unknown"
	}
	name := c.user.GetName()
	switch {
	case name == user.KubeScheduler:
		return "kube-scheduler"
	case name == user.KubeControllerManager, strings.HasPrefix(name, "system:serviceaccount:kube-system:"):
		return "kube-controller-manager"
	case name == user.APIServerUser:
		return "kube-apiserver"
	case strings.HasPrefix(name, "system:node:"):
		return "kubelet"
	}
	return name
}

// spread sums the squared lengths of the maps and lists in a value, up to the first sum above maxApplied.
func spread(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return spread(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0 // it points to its time zone, which package time may still be loading
		}
		for i := 0; i < v.NumField() && n <= maxApplied; i++ {
			n += spread(v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		n = int64(v.Len()) * int64(v.Len())
		for i := 0; i < v.Len() && n <= maxApplied; i++ {
			n += spread(v.Index(i))
		}
	case reflect.Map:
		n = int64(v.Len()) * int64(v.Len())
		switch v.Type().Elem().Kind() {
		case reflect.Struct, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
			for in := v.MapRange(); in.Next() && n <= maxApplied; {
				n += spread(in.Value())
			}
		}
	}
	return n
}

// encodeStorable is encode, dropping the managed fields of an object that would be too large to store with them.
func (c *call) encodeStorable(obj client.Object, value []byte) (client.Object, []byte, error) {
	if len(value) <= store.MaxValueBytes || len(obj.GetManagedFields()) == 0 {
		return obj, value, nil
	}
	out := kind.Shallow(obj)
	out.SetManagedFields(nil)
	value, err := c.row.Encode(out)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return out, value, nil
}
