package endpointslice

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// topology passes the allocatable CPU of each zone to the library. The library computes hints from it for services with
// the annotation service.kubernetes.io/topology-mode: Auto (KEP-2433). Without such a service, nodes are not read.
type topology struct {
	library *topologycache.TopologyCache

	mu      sync.Mutex
	changes uint64                      // number of node changes, plus 1
	known   uint64                      // value of changes at the library's last update
	auto    map[client.ObjectKey]uint64 // annotated services, with known at their last hints
}

func newTopology() *topology {
	return &topology{library: topologycache.NewTopologyCache(), changes: 1, auto: map[client.ObjectKey]uint64{}}
}

// automatic reports whether a service asks for hints based on the zones' CPU.
func automatic(svc *corev1.Service) bool {
	mode, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = svc.Annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

// node records a change of a node. It returns the services whose hints may change.
func (t *topology) node(was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	now, _ := is.(*corev1.Node)
	if before != nil && now != nil && share(before) == share(now) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes++
	var out []engine.Request
	for key := range t.auto {
		out = append(out, engine.Request{NamespacedName: key})
	}
	return out
}

// part is a node's contribution to its zone.
type part struct {
	zone, cpu string
	in        bool
}

func share(n *corev1.Node) part {
	p := part{
		zone: n.Labels[corev1.LabelTopologyZone],
		cpu:  n.Status.Allocatable.Cpu().String(),
		in:   nodestate.Ready(n),
	}
	// the library ignores control plane nodes
	for _, label := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, has := n.Labels[label]; has {
			p.in = false
		}
	}
	return p
}

// use must be called before a service's slices are computed. list lists all nodes. again reports whether changes
// of nodes require new hints.
func (t *topology) use(svc *corev1.Service, list func() ([]*corev1.Node, error)) (again bool, err error) {
	key := client.ObjectKeyFromObject(svc)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !automatic(svc) {
		delete(t.auto, key)
		return false, nil
	}
	if t.known != t.changes {
		nodes, err := list()
		if err != nil {
			return false, err
		}
		t.library.SetNodes(klog.Background(), nodes)
		t.known = t.changes
	}
	again = t.auto[key] != t.known
	t.auto[key] = t.known
	return again, nil
}

func (t *topology) forget(key client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.auto, key)
}
