package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

// declared holds the kinds that a reconciler may read and write.
type declared struct {
	name   string
	scheme *runtime.Scheme
	reads  map[schema.GroupKind]bool
	writes map[schema.GroupKind][]Part
	every  bool   // it may read all kinds
	any    []Part // the parts it may write of all kinds
}

func declare(r *Reconciler, scheme *runtime.Scheme) (*declared, error) {
	d := &declared{
		name:   r.Name,
		scheme: scheme,
		every:  r.Every != nil,
		reads:  map[schema.GroupKind]bool{},
		writes: map[schema.GroupKind][]Part{},
	}
	for _, w := range r.Watches {
		gk, err := d.kind(w.Object)
		if err != nil {
			return nil, err
		}
		d.reads[gk] = true
	}
	for _, o := range r.Reads {
		gk, err := d.kind(o)
		if err != nil {
			return nil, err
		}
		d.reads[gk] = true
	}
	for _, w := range r.Writes {
		if w.Object == nil {
			d.any = append(d.any, w.Parts...)
			continue
		}
		gk, err := d.kind(w.Object)
		if err != nil {
			return nil, err
		}
		d.writes[gk] = append(d.writes[gk], w.Parts...)
	}
	return d, nil
}

func (d *declared) kind(o runtime.Object) (schema.GroupKind, error) {
	gvk, err := apiutil.GVKForObject(o, d.scheme)
	if err != nil {
		return schema.GroupKind{}, fmt.Errorf("reconciler %s: %w", d.name, err)
	}
	return gvk.GroupKind(), nil
}

// listed returns the kind of a list's items.
func (d *declared) listed(list runtime.Object) (schema.GroupKind, error) {
	gk, err := d.kind(list)
	gk.Kind = strings.TrimSuffix(gk.Kind, "List")
	return gk, err
}

func (d *declared) mayWrite(o runtime.Object, parts ...Part) error {
	gk, err := d.kind(o)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if !slices.Contains(d.writes[gk], p) && !slices.Contains(d.any, p) {
			return fmt.Errorf("reconciler %s writes %s of %s, but does not declare it: add it to its Writes", d.name, p, gk)
		}
	}
	return nil
}

type reader struct {
	client.Reader
	d *declared
}

func (r reader) mayRead(o runtime.Object, list bool) error {
	if r.d.every {
		return nil
	}
	kind := r.d.kind
	if list {
		kind = r.d.listed
	}
	gk, err := kind(o)
	if err != nil {
		return err
	}
	if !r.d.reads[gk] {
		return fmt.Errorf("reconciler %s reads %s, but does not declare it: add it to its Watches or Reads", r.d.name, gk)
	}
	return nil
}

func (r reader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := r.mayRead(o, false); err != nil {
		return err
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

func (r reader) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if err := r.mayRead(l, true); err != nil {
		return err
	}
	return r.Reader.List(ctx, l, opts...)
}

// guard is the client of one reconciler. It rejects undeclared writes and records the others in the call's journal.
type guard struct {
	cc.Interface
	d *declared
	r client.Reader
}

func (g guard) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := g.d.mayWrite(o, Create); err != nil {
		return err
	}
	err := g.Interface.Create(ctx, o, opts...)
	note(ctx, o, err, created)
	return err
}

func (g guard) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	parts := []Part{Delete}
	if cc.FinalizerOf(opts) != "" {
		parts = append(parts, Finalizers)
	}
	if err := g.d.mayWrite(o, parts...); err != nil {
		return err
	}
	err := g.Interface.Delete(ctx, o, opts...)
	note(ctx, o, err, deleted)
	return err
}

func (g guard) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if err := g.d.mayWrite(o, Delete); err != nil {
		return err
	}
	return g.Interface.DeleteAllOf(ctx, o, opts...)
}

func (g guard) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	was := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	if err := g.r.Get(ctx, client.ObjectKeyFromObject(o), was); err != nil {
		return err
	}
	if err := g.d.mayWrite(o, changed(was, o)...); err != nil {
		return err
	}
	err := g.Interface.Update(ctx, o, opts...)
	note(ctx, o, err, updated)
	return err
}

// changed lists the parts in which two states of an object differ, except the status, which an update of the main
// resource does not write.
func changed(was, is client.Object) []Part {
	var parts []Part
	if !slices.Equal(was.GetFinalizers(), is.GetFinalizers()) {
		parts = append(parts, Finalizers)
	}
	if !equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences()) {
		parts = append(parts, Metadata)
	}
	a, b := reflect.ValueOf(was).Elem(), reflect.ValueOf(is).Elem()
	for i := range a.NumField() {
		switch a.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !equality.Semantic.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			return append(parts, Spec)
		}
	}
	return parts
}

func (g guard) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	parts, err := patched(data)
	if err != nil {
		return err
	}
	if err := g.d.mayWrite(o, parts...); err != nil {
		return err
	}
	err = g.Interface.Patch(ctx, o, client.RawPatch(p.Type(), data), opts...)
	note(ctx, o, err, updated)
	return err
}

// patched lists the parts that a merge patch writes. Preconditions (uid, resourceVersion) do not count.
func patched(data []byte) ([]Part, error) {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, errors.New("reconcilers write merge patches only")
	}
	var parts []Part
	for k, v := range body {
		switch k {
		case "apiVersion", "kind":
		case "status":
			parts = append(parts, Status)
		case "metadata":
			var meta map[string]json.RawMessage
			if err := json.Unmarshal(v, &meta); err != nil {
				return nil, err
			}
			for m := range meta {
				switch m {
				case "uid", "resourceVersion", "name", "namespace":
				case "finalizers", "$setElementOrder/finalizers", "$deleteFromPrimitiveList/finalizers":
					parts = append(parts, Finalizers)
				default:
					parts = append(parts, Metadata)
				}
			}
		default:
			parts = append(parts, Spec)
		}
	}
	return parts, nil
}

func (g guard) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return errors.New("reconcilers do not apply: use Update or Patch")
}

func (g guard) Status() client.SubResourceWriter { return g.SubResource("status") }

func (g guard) SubResource(name string) client.SubResourceClient {
	return guardSub{g.Interface.SubResource(name), g.d, name}
}

type guardSub struct {
	client.SubResourceClient
	d    *declared
	name string
}

func (g guardSub) part() Part {
	if g.name == "status" {
		return Status
	}
	return Spec
}

func (g guardSub) Create(ctx context.Context, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
	part := g.part()
	if g.name == "eviction" {
		part = Delete
	}
	if err := g.d.mayWrite(o, part); err != nil {
		return err
	}
	return g.SubResourceClient.Create(ctx, o, sub, opts...)
}

func (g guardSub) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := g.d.mayWrite(o, g.part()); err != nil {
		return err
	}
	err := g.SubResourceClient.Update(ctx, o, opts...)
	note(ctx, o, err, updated)
	return err
}

func (g guardSub) Patch(ctx context.Context, o client.Object, p client.Patch,
	opts ...client.SubResourcePatchOption) error {
	if err := g.d.mayWrite(o, g.part()); err != nil {
		return err
	}
	err := g.SubResourceClient.Patch(ctx, o, p, opts...)
	note(ctx, o, err, updated)
	return err
}

func (g guardSub) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return errors.New("reconcilers do not apply: use Update or Patch")
}

// Get reads from the cache, as List does. Use Current for a consistent read.
func (g guard) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return g.r.Get(ctx, key, o, opts...)
}

func (g guard) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return g.r.List(ctx, l, opts...)
}

// Current checks with the API server, bypassing caches, that o is current: by a dry-run update of its status without a
// change, which the bootstrap policy also allows to controllers that may not update the object. Otherwise it returns a
// conflict or not-found error.
func Current(ctx context.Context, c client.Client, o client.Object) error {
	same, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	return c.Status().Update(ctx, same, client.DryRunAll)
}

// Unchanged limits a delete to the observed version of the object.
func Unchanged(o client.Object) client.Preconditions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return client.Preconditions{UID: &uid, ResourceVersion: &version}
}

// Preconditions limits a delete to the observed object in any version, because another object may have its name.
func Preconditions(o client.Object) client.Preconditions {
	return client.Preconditions{UID: new(o.GetUID())}
}
