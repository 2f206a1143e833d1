package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// execve(2) fails if an argument or environment variable has maxString bytes or more, or if all together have more
// than maxStrings. The limits are enforced during expansion, because references can expand to gigabytes.
const (
	maxString  = 128 << 10
	maxStrings = 6 << 20
	// maxRead limits what envFrom reads, in bytes: a container may name one object of 1 MB thousands of times.
	maxRead = 64 << 20
)

// expandStatic expands a probe's command like the kubelet: by the values that the specification itself contains.
func expandStatic(command []string, env []corev1.EnvVar) ([]string, error) {
	vars, out := make(map[string]string, len(env)), make([]string, len(command))
	for _, e := range env {
		vars[e.Name] = e.Value
	}
	for i := range command {
		var err error
		if out[i], err = Expand(command[i], vars); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Expand replaces $(NAME) with the variable's value. $$ escapes $, unknown names stay, a too long result is an error.
func Expand(s string, vars map[string]string) (string, error) {
	var b strings.Builder
	last := strings.LastIndexByte(s, ')')
	for i := 0; i < len(s); i++ {
		if b.Len() >= maxString {
			break
		}
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			if last < i {
				b.WriteString(s[i : i+2])
				i++
				continue
			}
			end := strings.IndexByte(s[i+2:], ')')
			name := s[i+2 : i+2+end]
			if v, ok := vars[name]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+3+end])
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	if b.Len() >= maxString {
		return "", fmt.Errorf("%.40q... exceeds %d bytes after variable expansion", s, maxString-1)
	}
	return b.String(), nil
}

type environment struct {
	vars  map[string]string
	order []string
	size  int // in bytes
}

func (e *environment) set(name, value string) error {
	size := len(name) + len("=") + len(value)
	switch {
	case size >= maxString:
		return fmt.Errorf("environment variable %s is longer than %d bytes", name, maxString-1)
	case strings.Contains(value, "\x00"):
		return fmt.Errorf("environment variable %s contains a NUL byte, which ends a variable", name)
	case !utf8.ValidString(value): // the JSON of the OCI configuration cannot hold it
		return fmt.Errorf("environment variable %s is not valid UTF-8", name)
	}
	if old, ok := e.vars[name]; ok {
		e.size -= len(name) + len("=") + len(old)
	} else {
		e.order = append(e.order, name)
	}
	if e.size += size; e.size > maxStrings {
		return errTooManyStrings
	}
	e.vars[name] = value
	return nil
}

var errTooManyStrings = fmt.Errorf("the container's arguments and environment take more than %d bytes", maxStrings)

// expand expands arguments, which share the size limit with the environment.
func (e *environment) expand(args []string) ([]string, error) {
	var out []string
	for _, a := range args {
		text, err := Expand(a, e.vars)
		if err != nil {
			return nil, err
		}
		if e.size += len(text); e.size > maxStrings {
			return nil, errTooManyStrings
		}
		out = append(out, text)
	}
	return out, nil
}

func (e *environment) list() []string {
	out := make([]string, 0, len(e.order))
	for _, n := range e.order {
		out = append(out, n+"="+e.vars[n])
	}
	return out
}

func (m *Manager) environment(ctx context.Context, b build) (*environment, error) {
	p, c := b.pod, b.c
	e := &environment{vars: map[string]string{}}
	services, err := m.c.Services(ctx, p.Namespace)
	if err != nil {
		return nil, err
	}
	ofServices := serviceVars(services, p)
	for _, k := range slices.Sorted(maps.Keys(ofServices)) {
		if err := e.set(k, ofServices[k]); err != nil {
			return nil, err
		}
	}
	read := 0
	for _, from := range c.EnvFrom {
		data, err := m.envFrom(ctx, p, &from)
		if err != nil {
			return nil, err
		}
		for _, k := range slices.Sorted(maps.Keys(data)) {
			name := from.Prefix + k
			if read += len(name) + len(data[k]); read > maxRead {
				return nil, fmt.Errorf("envFrom reads more than %d bytes", maxRead)
			}
			if len(validation.IsRelaxedEnvVarName(name)) > 0 {
				continue
			}
			if err := e.set(name, data[k]); err != nil {
				return nil, err
			}
		}
	}
	for _, part := range m.c.Parts {
		for _, v := range part.Env(p) {
			if err := e.set(v.Name, v.Value); err != nil {
				return nil, err
			}
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, err := Expand(v.Value, e.vars)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", v.Name, err)
		}
		if v.ValueFrom != nil {
			var skip bool
			if value, skip, err = m.valueFrom(ctx, b, v.ValueFrom); err != nil {
				return nil, err
			}
			if skip {
				continue
			}
		}
		if err := e.set(v.Name, value); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (m *Manager) envFrom(ctx context.Context, p *corev1.Pod, from *corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		cm, err := m.volumes.Objects().ConfigMap(ctx, p.Namespace, from.ConfigMapRef.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && from.ConfigMapRef.Optional != nil && *from.ConfigMapRef.Optional {
				return nil, nil
			}
			return nil, err
		}
		return cm.Data, nil
	case from.SecretRef != nil:
		s, err := m.volumes.Objects().Secret(ctx, p.Namespace, from.SecretRef.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && from.SecretRef.Optional != nil && *from.SecretRef.Optional {
				return nil, nil
			}
			return nil, err
		}
		data := make(map[string]string, len(s.Data))
		for k, v := range s.Data {
			data[k] = string(v)
		}
		return data, nil
	}
	return nil, nil
}

func (m *Manager) valueFrom(ctx context.Context, b build,
	from *corev1.EnvVarSource) (value string, skip bool, err error) {
	p, c := b.pod, b.c
	optional := func(b *bool) bool { return b != nil && *b }
	switch {
	case from.FieldRef != nil:
		value, err = volume.Field(p, from.FieldRef.FieldPath, b.podIP, m.c.HostIP)
	case from.ResourceFieldRef != nil:
		value, err = volume.Resource(p, from.ResourceFieldRef, c.Name, m.c.Allocatable())
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		cm, err := m.volumes.Objects().ConfigMap(ctx, p.Namespace, r.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && optional(r.Optional) {
				return "", true, nil
			}
			return "", false, err
		}
		v, ok := cm.Data[r.Key]
		if !ok && !optional(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, p.Namespace, r.Name)
		}
		return v, !ok, nil
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		s, err := m.volumes.Objects().Secret(ctx, p.Namespace, r.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && optional(r.Optional) {
				return "", true, nil
			}
			return "", false, err
		}
		v, ok := s.Data[r.Key]
		if !ok && !optional(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, p.Namespace, r.Name)
		}
		return string(v), !ok, nil
	case from.FileKeyRef != nil:
		return fromFile(p, b.volumes, from.FileKeyRef)
	default:
		err = errors.New("this source of an environment variable is not supported on this node")
	}
	return value, false, err
}

// serviceVars returns the variables of the API server's service and, with enableServiceLinks, of the namespace's.
func serviceVars(services []*corev1.Service, p *corev1.Pod) map[string]string {
	vars := map[string]string{}
	links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks
	for _, s := range services {
		master := s.Namespace == "default" && s.Name == "kubernetes"
		if !master && (!links || s.Namespace != p.Namespace) || master && vars["KUBERNETES_SERVICE_HOST"] != "" {
			continue
		}
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
		ip, first := s.Spec.ClusterIP, s.Spec.Ports[0]
		vars[name+"_SERVICE_HOST"] = ip
		vars[name+"_SERVICE_PORT"] = strconv.Itoa(int(first.Port))
		for i, port := range s.Spec.Ports {
			n, proto := strconv.Itoa(int(port.Port)), strings.ToLower(string(port.Protocol))
			proto = cmp.Or(proto, "tcp")
			if port.Name != "" {
				vars[name+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(port.Name, "-", "_"))] = n
			}
			u := proto + "://" + net.JoinHostPort(ip, n)
			if i == 0 {
				vars[name+"_PORT"] = u
			}
			prefix := name + "_PORT_" + n + "_" + strings.ToUpper(proto)
			vars[prefix], vars[prefix+"_PROTO"], vars[prefix+"_PORT"], vars[prefix+"_ADDR"] = u, proto, n, ip
		}
	}
	return vars
}
