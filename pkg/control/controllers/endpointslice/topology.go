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

// topology tells the library how much CPU the nodes of each zone have, from which it makes the hints of services that
// are annotated with service.kubernetes.io/topology-mode: Auto (KEP-2433). Without such a service nodes are not looked
// at.
type topology struct {
	library *topologycache.TopologyCache

	mu      sync.Mutex
	changes uint64                      // of nodes, from 1
	known   uint64                      // those that the library knows
	auto    map[client.ObjectKey]uint64 // services with the annotation, and with which changes their hints were made
}

func newTopology() *topology {
	return &topology{library: topologycache.NewTopologyCache(), changes: 1, auto: map[client.ObjectKey]uint64{}}
}

// automatic reports whether a service wants hints from the CPU of the zones.
func automatic(svc *corev1.Service) bool {
	mode, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = svc.Annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

// node is called with each change of a node. It returns the services whose hints may change with it.
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

// part is what of a node counts for its zone.
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
	// the library leaves these out
	for _, label := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, has := n.Labels[label]; has {
			p.in = false
		}
	}
	return p
}

// use is called before the slices of a service are made, with a function that lists all nodes. It reports whether its
// hints must be made again because of nodes.
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

// forget removes a service.
func (t *topology) forget(key client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.auto, key)
}
