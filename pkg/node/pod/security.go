package pod

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// maxSeccompProfile is the maximum size of a seccomp profile, in bytes.
const maxSeccompProfile = 1 << 20

// security applies the security contexts of pod and container to s. It returns an error for unsupported settings.
func (m *Manager) security(s *runtime.Spec, p *corev1.Pod, c *corev1.Container, image runtime.Image) error {
	ps, cs := p.Spec.SecurityContext, c.SecurityContext
	if ps == nil {
		ps = &corev1.PodSecurityContext{}
	}
	if cs == nil {
		cs = &corev1.SecurityContext{}
	}
	if err := m.modules.unsupported(p, ps, cs); err != nil {
		return err
	}
	if err := user(s, ps, cs, image); err != nil {
		return err
	}
	s.Groups = append(s.Groups, ps.SupplementalGroups...)
	if ps.FSGroup != nil {
		s.Groups = append(s.Groups, *ps.FSGroup)
	}
	s.StrictGroups = ps.SupplementalGroupsPolicy != nil &&
		*ps.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict
	s.Privileged = cs.Privileged != nil && *cs.Privileged
	if err := inRange(s, p); err != nil {
		return err
	}
	s.UnmaskedProc = unmasked(cs)
	s.ReadonlyRootfs = cs.ReadOnlyRootFilesystem != nil && *cs.ReadOnlyRootFilesystem
	if cs.AllowPrivilegeEscalation != nil {
		s.NoNewPrivs = !*cs.AllowPrivilegeEscalation
	}
	if cs.Capabilities != nil {
		for _, a := range cs.Capabilities.Add {
			s.AddCaps = append(s.AddCaps, strings.TrimPrefix(string(a), "CAP_"))
		}
		for _, d := range cs.Capabilities.Drop {
			s.DropCaps = append(s.DropCaps, strings.TrimPrefix(string(d), "CAP_"))
		}
	}
	profile := ps.SeccompProfile
	if cs.SeccompProfile != nil {
		profile = cs.SeccompProfile
	}
	var err error
	s.AppArmor = appArmorName(appArmor(p, c))
	s.Seccomp, err = m.seccomp(profile, s.Privileged)
	return err
}

// unsupported returns an error for settings that the runtime would ignore.
func (m modules) unsupported(p *corev1.Pod, ps *corev1.PodSecurityContext, cs *corev1.SecurityContext) error {
	switch {
	case ps.WindowsOptions != nil || cs.WindowsOptions != nil:
		return errors.New("windowsOptions are for containers on Windows; this node runs Linux")
	case m.seLinux && (ps.SELinuxOptions != nil || cs.SELinuxOptions != nil):
		return errors.New("seLinuxOptions are not supported: the node's runtime sets no SELinux labels")
	case unmasked(cs) && !ownUsers(p):
		return errors.New("procMount Unmasked needs a user namespace (hostUsers: false)")
	}
	return nil
}

func unmasked(cs *corev1.SecurityContext) bool {
	return cs.ProcMount != nil && *cs.ProcMount == corev1.UnmaskedProcMount
}

func user(s *runtime.Spec, ps *corev1.PodSecurityContext, cs *corev1.SecurityContext, image runtime.Image) error {
	s.UID, s.GID = cmp.Or(cs.RunAsUser, ps.RunAsUser), cmp.Or(cs.RunAsGroup, ps.RunAsGroup)
	nonRoot := ps.RunAsNonRoot
	if cs.RunAsNonRoot != nil {
		nonRoot = cs.RunAsNonRoot
	}
	if nonRoot == nil || !*nonRoot {
		return nil
	}
	switch {
	case s.UID != nil && *s.UID == 0:
		return errors.New("container's runAsUser breaks non-root policy")
	case s.UID != nil:
	case image.UID != nil && *image.UID == 0 || image.UID == nil && image.User == "":
		return errors.New("container has runAsNonRoot and image will run as root")
	case image.UID == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root",
			image.User)
	}
	return nil
}

// seccomp returns the runtime's name for a profile. A Localhost profile must be below SeccompDir with links resolved.
func (m *Manager) seccomp(profile *corev1.SeccompProfile, privileged bool) (string, error) {
	if privileged {
		return "unconfined", nil
	}
	if profile == nil {
		return "runtime/default", nil
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeUnconfined:
		return "unconfined", nil
	case corev1.SeccompProfileTypeRuntimeDefault:
		return "runtime/default", nil
	case corev1.SeccompProfileTypeLocalhost:
	default:
		return "", fmt.Errorf("seccompProfile of type %q is not supported", profile.Type)
	}
	if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
		return "", errors.New("localhostProfile must be set if seccompProfile type is Localhost")
	}
	path, err := localProfile(m.c.SeccompDir, *profile.LocalhostProfile)
	if err != nil {
		return "", fmt.Errorf("cannot load seccomp profile %q: %w", *profile.LocalhostProfile, err)
	}
	return path, nil
}

func localProfile(dir, name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", errors.New("it must be a relative path without \"..\"")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	info, err := root.Stat(name) // fails for a symbolic link out of dir
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errors.New("not a regular file")
	case info.Size() > maxSeccompProfile:
		return "", fmt.Errorf("larger than %d bytes", maxSeccompProfile)
	}
	return filepath.EvalSymlinks(filepath.Join(dir, name))
}
