package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// portPrefix is the prefix of the keys that reserve node ports and health check node ports; the port number follows.
const portPrefix = kind.Root + "ranges/servicenodeports/"

// holder is the Service that has reserved a node port, as stored.
type holder struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// probes is how many random ports are tried before all reservations are read. It suffices unless most ports are in use.
const probes = 8

// ports allocates the node ports of one write.
type ports struct {
	*call
	taken map[int32]bool // in this write
	used  map[int32]bool // by any Service; nil until read is called
}

func (p *ports) read() error {
	if p.used != nil {
		return nil
	}
	kvs, _, _, err := p.store.Range(p.ctx, portPrefix, "", 0, 0)
	if err != nil {
		return status(err, corev1.Resource("services"), p.Name)
	}
	p.used = make(map[int32]bool, len(kvs))
	for _, kv := range kvs {
		if n, ok := portOf(kv.Key); ok {
			p.used[n] = true
		}
	}
	return nil
}

func (p *ports) free(port int32) (bool, error) {
	if p.taken[port] {
		return false, nil
	}
	_, err := p.store.Get(p.ctx, portKey(port))
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return false, status(err, corev1.Resource("services"), p.Name)
}

func portKey(port int32) string { return portPrefix + strconv.Itoa(int(port)) }

func portOf(key string) (int32, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, portPrefix), 10, 16)
	return int32(n), err == nil && n > 0
}

// nodePorts assigns the requested node ports to the ports of a Service, or any free ones. As upstream, ports with the
// same number and different protocols share a node port.
func (p *ports) nodePorts(now, was *core.Service) error {
	if now.Spec.Type != core.ServiceTypeNodePort && now.Spec.Type != core.ServiceTypeLoadBalancer {
		return nil
	}
	mine := map[int32]bool{}
	if was != nil {
		for _, port := range was.Spec.Ports {
			mine[port.NodePort] = port.NodePort != 0
		}
	}
	byPort := map[int32]int32{} // requested node port by service port
	for _, port := range now.Spec.Ports {
		if port.NodePort != 0 && byPort[port.Port] == 0 {
			byPort[port.Port] = port.NodePort
		}
	}
	type use struct {
		protocol core.Protocol
		port     int32
	}
	seen := map[use]bool{}
	for i := range now.Spec.Ports {
		port := &now.Spec.Ports[i]
		if port.NodePort == 0 && !wantsNodePorts(now) {
			continue
		}
		if shared := byPort[port.Port]; port.NodePort == 0 && shared != 0 && !seen[use{port.Protocol, shared}] {
			port.NodePort = shared
		}
		if !mine[port.NodePort] {
			if err := p.take(&port.NodePort); err != nil {
				if port.NodePort == 0 {
					return internal(fmt.Errorf("failed to allocate a nodePort: %w", err))
				}
				var known apierrors.APIStatus
				if errors.As(err, &known) {
					return err
				}
				return invalidService(now,
					field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port.NodePort, err.Error()))
			}
			mine[port.NodePort] = true
		}
		if byPort[port.Port] == 0 {
			byPort[port.Port] = port.NodePort
		}
		seen[use{port.Protocol, port.NodePort}] = true
	}
	return nil
}

// take reserves the given node port, or any free one if it is 0. As upstream (KEP-3668), it leaves the low part of
// the range, 16 to 128 ports, to explicit requests until the rest is full.
func (p *ports) take(port *int32) error {
	first, last := p.cfg.NodePortMin, p.cfg.NodePortMax
	if *port != 0 && (*port < first || *port > last) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", first, last)
	}
	if *port != 0 {
		free, err := p.free(*port)
		if err == nil && !free {
			err = errors.New("provided port is already allocated")
		}
		p.taken[*port] = true
		return err
	}
	size := last - first + 1
	low := min(max(16, size/32), 128)
	if size <= low {
		low = 0
	}
	for range probes {
		probe := first + low + rand.Int32N(size-low)
		free, err := p.free(probe)
		if err != nil {
			return err
		}
		if free {
			*port, p.taken[probe] = probe, true
			return nil
		}
	}
	if err := p.read(); err != nil {
		return err
	}
	if !p.search(port, first+low, size-low) && !p.search(port, first, low) {
		return errors.New("range is full")
	}
	return nil
}

func (p *ports) search(port *int32, from, n int32) bool {
	if n <= 0 {
		return false
	}
	start := rand.Int32N(n)
	for i := range n {
		if free := from + (start+i)%n; !p.used[free] && !p.taken[free] {
			*port, p.taken[free] = free, true
			return true
		}
	}
	return false
}

func portOp(port int32, s *corev1.Service) store.Op {
	value, err := json.Marshal(holder{s.Namespace, s.Name})
	if err != nil {
		panic(err) // a struct of two strings can always be encoded
	}
	return store.Op{Key: portKey(port), Value: value}
}

func holderOf(kv store.KV) (h holder) {
	if json.Unmarshal(kv.Value, &h) != nil {
		return holder{}
	}
	return h
}
