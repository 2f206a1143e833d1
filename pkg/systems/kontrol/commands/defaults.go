package commands

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// maxProbes limits the dry runs that look for defaulted fields.
const maxProbes = 200

// withoutDefaults removes the spec fields whose values the cluster would set by default. It finds them by dry-run
// creates under another name; if the cluster refuses those, it returns the object unchanged.
func withoutDefaults(ctx context.Context, client ctrl.Client, o map[string]any) map[string]any {
	ctx, cancel := context.WithTimeout(ctx, 3*targetPatience)
	defer cancel()
	p := prober{client: client, object: runtime.DeepCopyJSON(o), left: maxProbes}
	spec, ok := p.answer(ctx)
	if !ok || spec == nil {
		return o
	}
	p.full = spec
	p.prune(ctx, p.object["spec"])
	return p.object
}

// prober removes fields of an object as long as the defaulted spec stays the same.
type prober struct {
	client ctrl.Client
	object map[string]any
	full   any // the defaulted spec of the complete object
	left   int // requests that may still be sent
}

// answer returns the object's spec after the cluster's defaulting, from a dry run.
func (p *prober) answer(ctx context.Context) (spec any, ok bool) {
	if p.left == 0 {
		return nil, false
	}
	p.left--
	u := (&unstructured.Unstructured{Object: p.object}).DeepCopy()
	u.SetName(u.GetName() + "-adopt")
	err := p.client.Create(ctx, u, ctrl.DryRunAll)
	for _, allocated := range []string{"clusterIP", "clusterIPs"} { // differ in each dry run
		unstructured.RemoveNestedField(u.Object, "spec", allocated)
	}
	return u.Object["spec"], err == nil
}

func (p *prober) prune(ctx context.Context, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			has := v[k]
			delete(v, k)
			if got, ok := p.answer(ctx); ok && reflect.DeepEqual(got, p.full) {
				continue
			}
			v[k] = has
			p.prune(ctx, has)
		}
	case []any:
		for _, e := range v {
			p.prune(ctx, e)
		}
	}
}
