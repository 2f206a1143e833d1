package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// ownUsers reports whether a pod has its own user namespace (KEP-127).
func ownUsers(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// checkUsers returns an error, in the kubelet's words, if pods with the runtime handler cannot have user namespaces.
func (m *Manager) checkUsers(handler string) error {
	what := "runtime does not support user namespaces"
	if handler != "" {
		what = fmt.Sprintf("RuntimeClass handler %q does not support user namespaces", handler)
	}
	if m.c.UserNamespaces == nil {
		return fmt.Errorf("can't set `spec.hostUsers: false`, %s", what)
	}
	if err := m.c.UserNamespaces(); err != nil {
		return fmt.Errorf("can't set `spec.hostUsers: false`, %s: %w", what, err)
	}
	return nil
}

func usersOf(s network.Sandbox) *runtime.Users {
	if s.UserNS == "" {
		return nil
	}
	return &runtime.Users{Path: s.UserNS, First: s.IDs.First, Count: s.IDs.Count}
}

// inRange returns an error if the container's user namespace lacks one of its users or groups.
func inRange(s *runtime.Spec, p *corev1.Pod) error {
	if s.Users == nil {
		return nil
	}
	for _, id := range slices.Concat(some(s.UID), some(s.GID), s.Groups) {
		if id >= int64(s.Users.Count) {
			return fmt.Errorf("user or group %d is not in the pod's user namespace (hostUsers: false): it has 0 to %d",
				id, s.Users.Count-1)
		}
	}
	return nil
}

func some(id *int64) []int64 {
	if id == nil {
		return nil
	}
	return []int64{*id}
}

func ofUsers(name string) bool { return strings.HasPrefix(sysctl.NormalizeName(name), "user.") }

func userSysctls(p *corev1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil || !ownUsers(p) {
		return nil
	}
	out := map[string]string{}
	for _, s := range p.Spec.SecurityContext.Sysctls {
		if ofUsers(s.Name) {
			out[sysctl.NormalizeName(s.Name)] = s.Value
		}
	}
	return out
}
