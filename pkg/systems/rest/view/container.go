package view

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Env returns environment variables sorted by name.
func Env(m map[string]string) []corev1.EnvVar {
	var out []corev1.EnvVar
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, corev1.EnvVar{Name: k, Value: m[k]})
	}
	return out
}

// envMap returns the variables that have a plain value.
func envMap(env []corev1.EnvVar) map[string]string {
	var m map[string]string
	for _, e := range env {
		if e.ValueFrom != nil {
			continue
		}
		if m == nil {
			m = make(map[string]string, len(env))
		}
		m[e.Name] = e.Value
	}
	return m
}

// Requirements returns the resources of a container, or nil if none are given.
func Requirements(r wire.Requirements) (*corev1.ResourceRequirements, error) {
	list := func(r wire.Resources) (corev1.ResourceList, error) {
		if r.CPU < 0 || r.Memory < 0 {
			return nil, errors.New("resources must not be negative")
		}
		l := corev1.ResourceList{}
		if r.CPU > 0 {
			l[corev1.ResourceCPU] = *resource.NewMilliQuantity(r.CPU, resource.DecimalSI)
		}
		if r.Memory > 0 {
			l[corev1.ResourceMemory] = *resource.NewQuantity(r.Memory, resource.BinarySI)
		}
		if len(l) == 0 {
			return nil, nil
		}
		return l, nil
	}
	requests, err := list(r.Requests)
	if err != nil {
		return nil, err
	}
	limits, err := list(r.Limits)
	if err != nil || requests == nil && limits == nil {
		return nil, err
	}
	return &corev1.ResourceRequirements{Requests: requests, Limits: limits}, nil
}

func requirements(r *corev1.ResourceRequirements) wire.Requirements {
	if r == nil {
		return wire.Requirements{}
	}
	return wire.Requirements{Requests: resources(r.Requests), Limits: resources(r.Limits)}
}

func resources(l corev1.ResourceList) wire.Resources {
	return wire.Resources{CPU: l.Cpu().MilliValue(), Memory: l.Memory().Value()}
}

// protocol returns a protocol in upper case; TCP if none is given.
func protocol(p string) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(strings.ToUpper(p))
}

// number checks that n fits into 32 bits. what names it in the error.
func number(what string, n int) (int32, error) {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0, fmt.Errorf("%s %d is out of range", what, n)
	}
	return int32(n), nil
}

func containerPorts(ports []wire.ContainerPort) ([]corev1.ContainerPort, error) {
	var out []corev1.ContainerPort
	for _, p := range ports {
		port, err := number("containerPort", p.ContainerPort)
		if err != nil {
			return nil, err
		}
		host, err := number("hostPort", p.HostPort)
		if err != nil {
			return nil, err
		}
		out = append(out, corev1.ContainerPort{
			Name:          p.Name,
			ContainerPort: port,
			HostPort:      host,
			Protocol:      protocol(p.Protocol),
		})
	}
	return out, nil
}

func portsOf(ports []corev1.ContainerPort) []wire.ContainerPort {
	var out []wire.ContainerPort
	for _, p := range ports {
		out = append(out, wire.ContainerPort{
			Name:          p.Name,
			ContainerPort: int(p.ContainerPort),
			Protocol:      string(p.Protocol),
			HostPort:      int(p.HostPort),
		})
	}
	return out
}

func probe(h *wire.HealthCheck) (*corev1.Probe, error) {
	if h == nil {
		return nil, nil
	}
	p := &corev1.Probe{}
	port, err := number("port", h.Port)
	if err != nil {
		return nil, err
	}
	switch h.Type {
	case "http":
		p.HTTPGet = &corev1.HTTPGetAction{Path: h.HTTPPath, Port: intstr.FromInt32(port)}
	case "tcp":
		p.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}
	case "exec":
		p.Exec = &corev1.ExecAction{Command: h.Command}
	default:
		return nil, fmt.Errorf("probe type %q is not http, tcp or exec", h.Type)
	}
	for _, x := range []struct {
		what string
		from int
		to   *int32
	}{
		{"initialDelaySeconds", h.InitialDelaySeconds, &p.InitialDelaySeconds},
		{"periodSeconds", h.PeriodSeconds, &p.PeriodSeconds},
		{"timeoutSeconds", h.TimeoutSeconds, &p.TimeoutSeconds},
		{"successThreshold", h.SuccessThreshold, &p.SuccessThreshold},
		{"failureThreshold", h.FailureThreshold, &p.FailureThreshold},
	} {
		if *x.to, err = number(x.what, x.from); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func probeOf(p *corev1.Probe) *wire.HealthCheck {
	if p == nil {
		return nil
	}
	h := &wire.HealthCheck{
		InitialDelaySeconds: int(p.InitialDelaySeconds), PeriodSeconds: int(p.PeriodSeconds),
		TimeoutSeconds:   int(p.TimeoutSeconds),
		SuccessThreshold: int(p.SuccessThreshold), FailureThreshold: int(p.FailureThreshold),
	}
	switch {
	case p.HTTPGet != nil:
		h.Type, h.HTTPPath, h.Port = "http", p.HTTPGet.Path, p.HTTPGet.Port.IntValue()
	case p.TCPSocket != nil:
		h.Type, h.Port = "tcp", p.TCPSocket.Port.IntValue()
	case p.Exec != nil:
		h.Type, h.Command = "exec", p.Exec.Command
	default:
		return nil
	}
	return h
}

// Container converts a container of a request.
func Container(in *wire.Container) (corev1.Container, error) {
	c := corev1.Container{
		Name: in.Name, Image: in.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: in.Command, Args: in.Args,
		Env: Env(in.Env), WorkingDir: in.WorkingDir,
	}
	var err error
	if c.Ports, err = containerPorts(in.Ports); err != nil {
		return c, err
	}
	r, err := Requirements(in.Resources)
	if err != nil {
		return c, err
	}
	if r != nil {
		c.Resources = *r
	}
	if c.LivenessProbe, err = probe(in.LivenessProbe); err != nil {
		return c, fmt.Errorf("livenessProbe: %w", err)
	}
	if c.ReadinessProbe, err = probe(in.ReadinessProbe); err != nil {
		return c, fmt.Errorf("readinessProbe: %w", err)
	}
	return c, nil
}

func containerOf(c *corev1.Container, s *corev1.ContainerStatus) wire.Container {
	out := wire.Container{
		Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Env: envMap(c.Env), Ports: portsOf(c.Ports),
		LivenessProbe: probeOf(c.LivenessProbe), ReadinessProbe: probeOf(c.ReadinessProbe), WorkingDir: c.WorkingDir,
		Resources: requirements(&c.Resources),
		Status:    wire.ContainerWaiting, HealthStatus: wire.HealthUnknown,
	}
	if s == nil {
		return out
	}
	out.ContainerID, out.RestartCount = containerID(s.ContainerID), int(s.RestartCount)
	switch {
	case s.State.Running != nil:
		out.Status, out.StartedAt = wire.ContainerRunning, when(&s.State.Running.StartedAt)
		if c.ReadinessProbe != nil || c.LivenessProbe != nil {
			out.HealthStatus = wire.HealthUnhealthy
			if s.Ready {
				out.HealthStatus = wire.HealthHealthy
			}
		}
	case s.State.Terminated != nil:
		end := s.State.Terminated
		code := int(end.ExitCode)
		out.Status, out.ExitCode = wire.ContainerTerminated, &code
		out.StartedAt, out.FinishedAt = when(&end.StartedAt), when(&end.FinishedAt)
		if code != 0 {
			out.Error = end.Message
			if out.Error == "" {
				out.Error = fmt.Sprintf("container exited with code %d", code)
			}
		}
		out.ContainerID = cmp.Or(out.ContainerID, containerID(end.ContainerID))
	case s.State.Waiting != nil:
		out.Error = s.State.Waiting.Message
	}
	return out
}
