package pod

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls is the kubelet's list of namespaced, isolated sysctls. Every kernel that can run Coracle has them.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem",
	"net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
}

// maxSysctl is the API's maximum length of a sysctl's name, in bytes.
const maxSysctl = 253

var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

// Sysctls are the sysctls that pods may set. The zero value allows none.
type Sysctls struct {
	names, prefixes map[string]sysctl.Namespace
}

// NewSysctls allows the safe sysctls and the given unsafe ones, each a name or a prefix ending in "*". It returns an
// error for sysctls outside the network, IPC and user namespaces, since those would change the node.
func NewSysctls(unsafe []string) (*Sysctls, error) {
	s := &Sysctls{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	for _, name := range safeSysctls {
		s.names[name], _, _ = sysctl.GetNamespace(name)
	}
	for _, pattern := range unsafe {
		if len(pattern) > maxSysctl || !sysctlPattern.MatchString(pattern) {
			return nil, fmt.Errorf("%q is neither the name of a sysctl nor a prefix that ends in *", pattern)
		}
		ns, name, prefix := sysctl.GetNamespace(pattern)
		switch {
		case ns != sysctl.NetNamespace && ns != sysctl.IPCNamespace && ns != sysctl.UserNamespace:
			return nil, fmt.Errorf("sysctl %q does not belong to a network, IPC or user namespace: pods would set it "+
				"for the whole node", pattern)
		case prefix:
			s.prefixes[name] = ns
		default:
			s.names[name] = ns
		}
	}
	return s, nil
}

// refuse rejects pods that set a sysctl which is not allowed, or whose namespace they share with the host.
func (s *Sysctls) refuse(p *corev1.Pod) *Verdict {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	for _, want := range p.Spec.SecurityContext.Sysctls {
		name := sysctl.NormalizeName(want.Name)
		ns, allowed := s.names[name]
		for prefix, of := range s.prefixes {
			if !allowed && strings.HasPrefix(name, prefix) {
				ns, allowed = of, true
			}
		}
		switch {
		case !allowed:
			return &Verdict{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q not allowlisted", name)}
		case ns == sysctl.NetNamespace && p.Spec.HostNetwork, ns == sysctl.IPCNamespace && p.Spec.HostIPC,
			ns == sysctl.UserNamespace && !ownUsers(p):
			return &Verdict{
				Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", name, ns),
			}
		}
	}
	return nil
}
