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
	"github.com/coracle-dev/coracle/pkg/store"
)

// portPrefix is where node ports and health check node ports are reserved, by their number.
const portPrefix = kind.Root + "ranges/servicenodeports/"

// holder is who has a node port, as it is stored.
type holder struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// probes is how many ports are tried at random before all reservations are read: enough unless most ports are in use.
const probes = 8

// ports allocates the node ports of one write.
type ports struct {
	*call
	taken map[int32]bool // by this write
	used  map[int32]bool // by anybody, once all were read
}

// read collects the ports that are reserved.
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

// free asks for one port alone.
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

// nodePorts gives a service's ports the node ports they ask for, or any. Ports of one service with the same
// number but other protocols share one.
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
	byPort := map[int32]int32{} // what is asked for by number of the service's port
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
				return invalidService(now, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port.NodePort, err.Error()))
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

// take finds a node port, any free one if it is 0. Like upstream (KEP-3668) it leaves the low part of the range, between 16 and 128
// ports, to those who ask for a port by its number, until the rest is full.
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

// search takes the first free one of n ports, beginning anywhere.
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
		panic(err) // two strings can be encoded
	}
	return store.Op{Key: portKey(port), Value: value}
}

// holderOf reads who has a port; a value that cannot be read belongs to nobody.
func holderOf(kv store.KV) (h holder) {
	if json.Unmarshal(kv.Value, &h) != nil {
		return holder{}
	}
	return h
}
