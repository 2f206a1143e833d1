package registry

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// snapshot lists the objects of one namespace. Each kind is listed once, when first used.
type snapshot struct {
	q         *quotas
	namespace string
	lists     map[*kind.Resource][]*cache.Entry
}

func (s *snapshot) list(row *kind.Resource) []*cache.Entry {
	list, ok := s.lists[row]
	if !ok {
		list, _ = s.q.r.cache.List(row, cache.Query{Namespace: s.namespace})
		s.lists[row] = list
	}
	return list
}

// shows reports whether the snapshot contains the write of a charge.
func (s *snapshot) shows(h *charge) bool {
	for _, e := range s.list(h.row) {
		if e.Object.GetName() == h.name {
			return e.Revision > h.was
		}
	}
	return false
}

// lister implements quota.ListerForResourceFunc. Kinds that are not served have empty lists.
func (s *snapshot) lister(gvr schema.GroupVersionResource) (toolscache.GenericLister, error) {
	return listed{s, s.q.r.kinds.Table().ByGVR(gvr)}, nil
}

type listed struct {
	s   *snapshot
	row *kind.Resource
}

func (l listed) ByNamespace(string) toolscache.GenericNamespaceLister { return l }

func (l listed) List(selector labels.Selector) ([]runtime.Object, error) {
	if l.row == nil {
		return nil, nil
	}
	entries := l.s.list(l.row)
	out := make([]runtime.Object, 0, len(entries))
	for _, e := range entries {
		if selector.Matches(labels.Set(e.Object.GetLabels())) {
			out = append(out, e.Object)
		}
	}
	return out, nil
}

func (l listed) Get(name string) (runtime.Object, error) {
	if l.row != nil {
		for _, e := range l.s.list(l.row) {
			if e.Object.GetName() == name {
				return e.Object, nil
			}
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}
