package garbage

import (
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

type object struct {
	schema.GroupVersionKind
	Namespace, Name string
}

// request encodes an object in a request. unpack decodes it.
func (o object) request() engine.Request {
	return engine.RequestFor(strings.Join([]string{o.Group, o.Version, o.Kind, o.Namespace}, "|"), o.Name)
}

func unpack(r engine.Request) (o object, ok bool) {
	parts := strings.Split(r.Namespace, "|")
	if len(parts) != 4 {
		return o, false
	}
	o.Group, o.Version, o.Kind, o.Namespace, o.Name = parts[0], parts[1], parts[2], parts[3], r.Name
	return o, true
}

// graph tracks the dependents of each owner from the events of all kinds. It may lag behind the cache, so each
// deletion is verified there first.
type graph struct {
	mu         sync.Mutex
	dependents map[types.UID]map[object]types.UID // by owner, each dependent with its UID
	absent     map[types.UID]struct{}             // owners that are confirmed to be gone
}

// remembered bounds absent. Beyond it an arbitrary owner is evicted, and confirmed again if needed.
const remembered = 500

func newGraph() *graph {
	return &graph{dependents: map[types.UID]map[object]types.UID{}, absent: map[types.UID]struct{}{}}
}

// see records a change of one object, and returns the objects to reconcile.
func (g *graph) see(gvk schema.GroupVersionKind, was, is client.Object) []engine.Request {
	o := is
	if o == nil {
		o = was
	}
	self := object{gvk, o.GetNamespace(), o.GetName()}
	var before, after []metav1.OwnerReference
	if was != nil {
		before = was.GetOwnerReferences()
	}
	if is != nil {
		after = is.GetOwnerReferences()
	}
	var out []engine.Request
	changed := was == nil || is == nil || was.GetUID() != is.GetUID() || !slices.EqualFunc(before, after, sameRef)
	if changed && len(before)+len(after) > 0 {
		g.mu.Lock()
		for _, ref := range before {
			if set := g.dependents[ref.UID]; set != nil && set[self] == was.GetUID() {
				delete(set, self)
				if len(set) == 0 {
					delete(g.dependents, ref.UID)
				}
			}
		}
		for _, ref := range after {
			set := g.dependents[ref.UID]
			if set == nil {
				set = map[object]types.UID{}
				g.dependents[ref.UID] = set
			}
			set[self] = is.GetUID()
		}
		g.mu.Unlock()
	}
	switch {
	case is == nil:
		// Its dependents have lost an owner, and its owners may have waited for its deletion.
		for _, d := range g.of(was.GetUID()) {
			out = append(out, d.request())
		}
		out = append(out, owners(self, before)...)
	case is.GetDeletionTimestamp() != nil && waits(is):
		out = append(out, self.request())
	case changed && len(after) > 0:
		out = append(out, self.request())
	}
	if is != nil && was != nil && changed {
		out = append(out, owners(self, before)...) // a foreground deletion may have waited for this reference
	}
	return out
}

func sameRef(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && blocks(a) == blocks(b)
}

func blocks(r metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

// owners returns requests for the owners whose deletion the references block.
func owners(of object, refs []metav1.OwnerReference) []engine.Request {
	var out []engine.Request
	for _, ref := range refs {
		if blocks(ref) {
			out = append(out, ownerOf(of, ref).request())
		}
	}
	return out
}

// ownerOf returns the object that a reference names, with the dependent's namespace even if the kind has none.
func ownerOf(of object, ref metav1.OwnerReference) object {
	gv, _ := schema.ParseGroupVersion(ref.APIVersion)
	return object{gv.WithKind(ref.Kind), of.Namespace, ref.Name}
}

func (g *graph) of(owner types.UID) []object {
	g.mu.Lock()
	defer g.mu.Unlock()
	set := g.dependents[owner]
	out := make([]object, 0, len(set))
	for o := range set {
		out = append(out, o)
	}
	return out
}

func (g *graph) isAbsent(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.absent[uid]
	return ok
}

func (g *graph) setAbsent(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.absent) >= remembered {
		for other := range g.absent {
			delete(g.absent, other)
			break
		}
	}
	g.absent[uid] = struct{}{}
}
