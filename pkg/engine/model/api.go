package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

// errKilled is the result of writes after the process was killed.
var errKilled = errors.New("the process was killed")

type key struct {
	gvk             schema.GroupVersionKind
	namespace, name string
}

type change struct {
	key     key
	was, is client.Object
}

// api is the API server of a world: the stored objects, the cached ones, and the changes between them in order.
type api struct {
	cc.Interface // unused methods panic
	w            *World
	stored       map[key]client.Object
	cached       map[key]client.Object
	pending      []change
	revision     int
	// left is the number of further writes before the process dies or a write fails; negative means unlimited.
	left   int
	fail   error
	writes int
}

var _ cc.Interface = (*api)(nil)

func (a *api) Scheme() *runtime.Scheme { return a.w.scheme }
func (a *api) Cache() ctrlcache.Cache  { return nil }

func (a *api) key(o client.Object) key {
	gvk, err := apiutil.GVKForObject(o, a.w.scheme)
	a.w.must(err)
	return key{gvk, o.GetNamespace(), o.GetName()}
}

func resourceOf(k key) schema.GroupResource {
	plural, _ := meta.UnsafeGuessKindToResource(k.gvk)
	return plural.GroupResource()
}

// commit stores an object, or removes it if is is nil.
func (a *api) commit(k key, is client.Object) {
	was := a.stored[k]
	if is == nil {
		delete(a.stored, k)
	} else {
		a.revision++
		is.SetResourceVersion(strconv.Itoa(a.revision))
		a.stored[k] = is
	}
	a.pending = append(a.pending, change{k, was, is})
}

// begin counts a write. It fails if the process is dead, or if this is the write that must fail.
func (a *api) begin() error {
	if a.left == 0 {
		if a.fail == nil {
			return errKilled
		}
		a.left = -1
		return a.fail
	}
	a.left--
	return nil
}

// current returns a copy of the stored object that o may replace.
func (a *api) current(k key, o client.Object) (client.Object, error) {
	was := a.stored[k]
	if was == nil {
		return nil, apierrors.NewNotFound(resourceOf(k), k.name)
	}
	if o.GetUID() != "" && o.GetUID() != was.GetUID() ||
		o.GetResourceVersion() != "" && o.GetResourceVersion() != was.GetResourceVersion() {
		return nil, apierrors.NewConflict(resourceOf(k), k.name, errors.New("it was modified"))
	}
	return was.DeepCopyObject().(client.Object), nil
}

// replace stores next. It removes an object that is being deleted and has no finalizer left.
func (a *api) replace(k key, next client.Object, answer client.Object) {
	was := a.stored[k]
	next.SetResourceVersion(was.GetResourceVersion())
	if !equality.Semantic.DeepEqual(was, next) {
		a.writes++
		if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 && !runs(was) {
			a.commit(k, nil)
		} else {
			a.commit(k, next)
		}
	}
	set(answer, next)
}

// runs reports whether an agent must stop a pod before the pod can be removed.
func runs(o client.Object) bool {
	p, ok := o.(*corev1.Pod)
	return ok && p.Spec.NodeName != "" && (p.DeletionGracePeriodSeconds == nil || *p.DeletionGracePeriodSeconds > 0)
}

func set(out, from client.Object) {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

func status(o client.Object) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName("Status") }

func (a *api) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if a.w.OnCreate != nil && a.w.OnCreate(o) {
		return nil
	}
	if err := a.begin(); err != nil {
		return err
	}
	a.revision++
	if o.GetName() == "" {
		o.SetName(o.GetGenerateName() + strconv.Itoa(a.revision))
	}
	k := a.key(o)
	if a.stored[k] != nil {
		return apierrors.NewAlreadyExists(resourceOf(k), k.name)
	}
	o.SetUID(types.UID(fmt.Sprint("uid-", a.revision)))
	o.SetCreationTimestamp(metav1.NewTime(a.w.Now))
	a.writes++
	a.commit(k, o.DeepCopyObject().(client.Object))
	set(o, a.stored[k])
	return nil
}

func (a *api) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	if err := a.begin(); err != nil {
		return err
	}
	k := a.key(o)
	was, err := a.current(k, o)
	if err != nil {
		return err
	}
	next := o.DeepCopyObject().(client.Object)
	next.SetDeletionTimestamp(was.GetDeletionTimestamp())
	if s := status(next); s.IsValid() {
		s.Set(status(was))
	}
	a.changed(was, next)
	a.replace(k, next, o)
	return nil
}

func (a *api) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	return a.patch(o, p, false)
}

func (a *api) patch(o client.Object, p client.Patch, ofStatus bool) error {
	if err := a.begin(); err != nil {
		return err
	}
	data, err := p.Data(o)
	a.w.must(err)
	var preconditions metav1.PartialObjectMetadata
	a.w.must(json.Unmarshal(data, &preconditions))
	k := a.key(o)
	was, err := a.current(k, &preconditions)
	if err != nil {
		return err
	}
	text, err := json.Marshal(was)
	a.w.must(err)
	merged, err := jsonpatch.MergePatch(text, data)
	a.w.must(err)
	next := reflect.New(reflect.TypeOf(was).Elem()).Interface().(client.Object)
	a.w.must(json.Unmarshal(merged, next))
	if ofStatus {
		status(was).Set(status(next))
		next = was
	} else if s := status(next); s.IsValid() {
		s.Set(status(was))
	}
	a.changed(a.stored[k], next)
	a.replace(k, next, o)
	return nil
}

// changed calls OnUpdate for an update by a reconciler.
func (a *api) changed(was, is client.Object) {
	if a.w.OnUpdate != nil {
		a.w.OnUpdate(was, is)
	}
}

func (a *api) Delete(_ context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := a.begin(); err != nil {
		return err
	}
	was := a.stored[a.key(o)]
	err := a.remove(o, opts...)
	if err == nil && a.w.OnDelete != nil {
		a.w.OnDelete(was)
	}
	return err
}

func (a *api) remove(o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	k := a.key(o)
	was := a.stored[k]
	switch {
	case was == nil:
		return apierrors.NewNotFound(resourceOf(k), k.name)
	case options.Preconditions != nil && options.Preconditions.UID != nil && *options.Preconditions.UID != was.GetUID():
		return apierrors.NewConflict(resourceOf(k), k.name, errors.New("the UID does not match"))
	case options.Preconditions != nil && options.Preconditions.ResourceVersion != nil &&
		*options.Preconditions.ResourceVersion != was.GetResourceVersion():
		return apierrors.NewConflict(resourceOf(k), k.name, errors.New("the version does not match"))
	}
	next := was.DeepCopyObject().(client.Object)
	// a grace period can only be shortened
	if p, ok := next.(*corev1.Pod); ok && (p.DeletionTimestamp == nil || options.GracePeriodSeconds != nil) {
		p.DeletionGracePeriodSeconds = options.GracePeriodSeconds
	}
	if len(was.GetFinalizers()) == 0 && !runs(next) {
		a.writes++
		a.commit(k, nil)
		return nil
	}
	if was.GetDeletionTimestamp() == nil {
		next.SetDeletionTimestamp(&metav1.Time{Time: a.w.Now})
	}
	a.replace(k, next, next.DeepCopyObject().(client.Object))
	return nil
}

// Get reads from the cache, as List does.
func (a *api) Get(_ context.Context, name client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	k := a.key(o)
	k.namespace, k.name = name.Namespace, name.Name
	found := a.cached[k]
	if found == nil {
		return apierrors.NewNotFound(resourceOf(k), k.name)
	}
	set(o, found)
	return nil
}

func (a *api) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	gvk, err := apiutil.GVKForObject(list, a.w.scheme)
	a.w.must(err)
	gvk.Kind = gvk.Kind[:len(gvk.Kind)-len("List")]
	var out []runtime.Object
	for _, k := range sorted(a.cached) {
		o := a.cached[k]
		if k.gvk == gvk && (options.Namespace == "" || options.Namespace == k.namespace) &&
			(options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(o.GetLabels()))) {
			out = append(out, o.DeepCopyObject())
		}
	}
	return meta.SetList(list, out)
}

func sorted(m map[key]client.Object) []key {
	return slices.SortedFunc(maps.Keys(m), compare)
}

func (a *api) Status() client.SubResourceWriter { return a.SubResource("status") }

// SubResource returns the status for any name, since an approval is a part of it.
func (a *api) SubResource(string) client.SubResourceClient { return statusOf{a: a} }

type statusOf struct {
	client.SubResourceClient
	a *api
}

func (s statusOf) Update(_ context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	var options client.SubResourceUpdateOptions
	options.ApplyOptions(opts)
	dry := len(options.DryRun) > 0
	if !dry {
		if err := s.a.begin(); err != nil {
			return err
		}
	}
	k := s.a.key(o)
	next, err := s.a.current(k, o)
	if err != nil || dry {
		return err
	}
	status(next).Set(status(o.DeepCopyObject().(client.Object)))
	s.a.changed(s.a.stored[k], next)
	s.a.replace(k, next, o)
	return nil
}

func (s statusOf) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.a.patch(o, p, true)
}
