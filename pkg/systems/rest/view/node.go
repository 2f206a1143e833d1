package view

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Load describes the pods on a node.
type Load struct {
	Tasks int
	Used  wire.Resources
}

// Place is where a worker serves.
type Place struct {
	Host string
	Port int
}

// Node converts a node for clients. They read an external worker's logs at the address it registered, other nodes'
// logs at facade. heartbeat is the time of the node's lease, or zero.
func Node(n *corev1.Node, load Load, heartbeat time.Time, facade Place) wire.Node {
	out := wire.Node{
		NodeID: n.Name, Hostname: facade.Host, Port: facade.Port, Status: wire.NodeOffline,
		RunningTasks: load.Tasks + elsewhere(n), Capacity: int(n.Status.Capacity.Pods().Value()), LastHeartbeat: heartbeat,
		Resources: &wire.NodeResources{
			Capacity:    resources(n.Status.Capacity),
			Allocatable: resources(n.Status.Allocatable),
			Used:        load.Used,
		},
	}
	if tasks.IsExternal(n) {
		out.Hostname = n.Annotations[HostnameAnnotation]
		if a, err := Address(n); err == nil {
			out.Port = int(a.Port())
		}
	}
	if c := ready(n); c != nil {
		if c.Status == corev1.ConditionTrue {
			out.Status = wire.NodeOnline
		}
		if out.LastHeartbeat.IsZero() {
			out.LastHeartbeat = c.LastHeartbeatTime.Time
		}
	}
	return out
}

// Online reports whether the node is Ready.
func Online(n *corev1.Node) bool {
	c := ready(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

func ready(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// SetReady sets the Ready condition of a node that the caller owns.
func SetReady(n *corev1.Node, status corev1.ConditionStatus, reason, message string, now time.Time) {
	at := metav1.NewTime(now)
	c := ready(n)
	if c == nil {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, LastTransitionTime: at,
		})
		c = &n.Status.Conditions[len(n.Status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = at
	}
	c.Status, c.Reason, c.Message, c.LastHeartbeatTime = status, reason, message, at
}

// Address returns the registered address of an external worker. The worker must report from it, and requests are only
// sent to it.
func Address(n *corev1.Node) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(n.Annotations[AddressAnnotation])
	if err != nil {
		return a, fmt.Errorf("node %s has no valid annotation %s", n.Name, AddressAnnotation)
	}
	return a, nil
}

// WorkerZone is the zone of external workers. It excludes them from the count by which the node lifecycle
// distinguishes lost nodes from a network partition.
const WorkerZone = "external"

// maxCPU and maxMemory bound a worker's claimed capacity: a million cores, and 1 PiB.
const (
	maxCPU    = 1_000_000 * 1000
	maxMemory = 1 << 50
	// maxCapacity is the same limit as a number of tasks.
	maxCapacity = 1_000_000
)

// NewNode returns the Node of a registration from an address.
func NewNode(in *wire.RegisterNode, objectName string, address netip.AddrPort, now time.Time) (*corev1.Node, error) {
	has, err := capacity(in)
	if err != nil {
		return nil, err
	}
	timeout := cmp.Or(in.HeartbeatTimeoutSeconds, tasks.DefaultHeartbeatTimeout)
	if timeout < tasks.MinHeartbeatTimeout || timeout > tasks.MaxHeartbeatTimeout {
		return nil, fmt.Errorf("heartbeatTimeoutSeconds must be from %d to %d", tasks.MinHeartbeatTimeout,
			tasks.MaxHeartbeatTimeout)
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: objectName,
			Labels: map[string]string{
				tasks.External: "true", Managed: "true", corev1.LabelHostname: objectName, corev1.LabelTopologyZone: WorkerZone,
				"node.kubernetes.io/exclude-from-external-load-balancers": "true",
			},
			Annotations: map[string]string{
				AddressAnnotation:      address.String(),
				HostnameAnnotation:     in.Hostname,
				tasks.HeartbeatTimeout: strconv.Itoa(timeout),
			},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: tasks.External, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address.Addr().String()},
				{Type: corev1.NodeHostName, Address: in.Hostname},
			},
		},
	}
	SetReady(n, corev1.ConditionTrue, "Registered", "the external worker registered", now)
	return n, nil
}

// capacity returns what a registration says that its worker has. By Podling's rule a worker runs one task at a time for
// each core and GiB, whichever is less, but at least one.
func capacity(in *wire.RegisterNode) (corev1.ResourceList, error) {
	if in.Capacity < 0 || in.Capacity > maxCapacity {
		return nil, fmt.Errorf("capacity must be a number of tasks from 1 to %d", maxCapacity)
	}
	cpu, memory, tasks := int64(in.Capacity)*1000, int64(in.Capacity)<<30, int64(in.Capacity)
	var err error
	if in.CPU != "" {
		if cpu, err = CPU(in.CPU); err != nil {
			return nil, fmt.Errorf("invalid cpu format: %w", err)
		}
	}
	if in.Memory != "" {
		if memory, err = Memory(in.Memory); err != nil {
			return nil, fmt.Errorf("invalid memory format: %w", err)
		}
	}
	if cpu <= 0 || cpu > maxCPU || memory <= 0 || memory > maxMemory {
		return nil, errors.New("cpu and memory must be positive, and not more than any machine has")
	}
	tasks = cmp.Or(tasks, max(1, min(cpu/1000, memory>>30)))
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(tasks, resource.DecimalSI),
	}, nil
}

// elsewhere is the number of tasks that an external worker runs for others than this cluster, as its heartbeats say. It
// is what its allocatable pods lack.
func elsewhere(n *corev1.Node) int {
	return int(n.Status.Capacity.Pods().Value() - n.Status.Allocatable.Pods().Value())
}

// SetLoad records what a heartbeat says on a node of the caller's own: the capacity, and the running tasks, of which
// ours are known. It reports whether that changed.
func SetLoad(n *corev1.Node, in *wire.Heartbeat, ours int) bool {
	before := n.Status.DeepCopy()
	pods := n.Status.Capacity.Pods().Value()
	if in.Capacity > 0 {
		pods = int64(min(in.Capacity, maxCapacity))
	}
	others := int64(elsewhere(n))
	if in.RunningTasks != nil {
		others = int64(max(0, *in.RunningTasks-ours))
	}
	n.Status.Capacity, n.Status.Allocatable = maps.Clone(n.Status.Capacity), maps.Clone(n.Status.Allocatable)
	n.Status.Capacity[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	n.Status.Allocatable[corev1.ResourcePods] = *resource.NewQuantity(max(0, pods-others), resource.DecimalSI)
	return !equality.Semantic.DeepEqual(before, &n.Status)
}

// CPU parses a number of cores, in thousandths: "2", "2.5" or "500m".
func CPU(s string) (int64, error) {
	if milli, ok := strings.CutSuffix(s, "m"); ok {
		return strconv.ParseInt(milli, 10, 64)
	}
	cores, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(cores) || math.Abs(cores) > maxCPU {
		return 0, fmt.Errorf("invalid CPU format: %s", s)
	}
	return int64(math.Round(cores * 1000)), nil
}

var units = []struct {
	suffix string
	bytes  float64
}{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"K", 1e3}}

// Memory parses an amount in bytes: "2Gi", "1.5G" or "1073741824".
func Memory(s string) (int64, error) {
	for _, u := range units {
		amount, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(amount, 64)
		if err != nil || math.IsNaN(n) || math.Abs(n*u.bytes) > 1<<60 {
			return 0, fmt.Errorf("invalid memory format: %s", s)
		}
		return int64(n * u.bytes), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("invalid memory format: %s", s)
	}
	return n, nil
}
