package view

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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

type Place struct {
	Host string
	Port int
}

// Node converts a node for clients. They read an external worker's logs at the address it registered, other nodes'
// logs at facade. heartbeat is the time of the node's lease, or zero.
func Node(n *corev1.Node, load Load, heartbeat time.Time, facade Place) wire.Node {
	out := wire.Node{
		NodeID: n.Name, Hostname: facade.Host, Port: facade.Port, Status: wire.NodeOffline, RunningTasks: load.Tasks,
		LastHeartbeat: heartbeat,
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
)

// NewNode returns the Node of a registration from an address.
func NewNode(in *wire.RegisterNode, objectName string, address netip.AddrPort, now time.Time) (*corev1.Node, error) {
	cpu, err := CPU(in.CPU)
	if err != nil {
		return nil, fmt.Errorf("invalid cpu format: %w", err)
	}
	memory, err := Memory(in.Memory)
	if err != nil {
		return nil, fmt.Errorf("invalid memory format: %w", err)
	}
	if cpu <= 0 || cpu > maxCPU || memory <= 0 || memory > maxMemory {
		return nil, errors.New("cpu and memory must be positive, and at most a million cores and 1 PiB")
	}
	timeout := in.HeartbeatTimeoutSeconds
	if timeout == 0 {
		timeout = tasks.DefaultHeartbeatTimeout
	}
	if timeout < tasks.MinHeartbeatTimeout || timeout > tasks.MaxHeartbeatTimeout {
		return nil, fmt.Errorf("heartbeatTimeoutSeconds must be from %d to %d", tasks.MinHeartbeatTimeout,
			tasks.MaxHeartbeatTimeout)
	}
	has := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(slots(cpu, memory), resource.DecimalSI),
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

// slots returns a worker's number of tasks by Podling's rule: one per core and per GiB, whichever is less, but at
// least one.
func slots(cpu, memory int64) int64 { return max(1, min(cpu/1000, memory>>30)) }

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
