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

// maxProbes is how many requests may be sent to find out which fields have defaults.
const maxProbes = 200

// withoutDefaults returns an object without the fields of its spec that the cluster sets by itself to the same, which
// is found out by dry runs of creates under another name. If the cluster refuses those, the object is returned as it
// is.
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

// prober removes fields of an object as long as the cluster's answer stays the same.
type prober struct {
	client ctrl.Client
	object map[string]any
	full   any // the spec that the cluster answers to all fields
	left   int // how many requests may be sent
}

// answer returns the spec that the cluster would make of the object.
func (p *prober) answer(ctx context.Context) (spec any, ok bool) {
	if p.left == 0 {
		return nil, false
	}
	p.left--
	u := (&unstructured.Unstructured{Object: p.object}).DeepCopy()
	u.SetName(u.GetName() + "-adopt")
	err := p.client.Create(ctx, u, ctrl.DryRunAll)
	for _, allocated := range []string{"clusterIP", "clusterIPs"} { // another one each time
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
