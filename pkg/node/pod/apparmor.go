package pod

import (
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// modules are the Linux security modules of the node.
type modules struct {
	// noAppArmor says why containers cannot have an AppArmor profile, "" if they can.
	noAppArmor string
	seLinux    bool
}

func readModules() modules {
	m := modules{noAppArmor: "AppArmor is not enabled on the host"}
	text, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err == nil && strings.HasPrefix(string(text), "Y") {
		m.noAppArmor = ""
		if _, err := os.Stat("/sbin/apparmor_parser"); err != nil {
			m.noAppArmor = "the host has no /sbin/apparmor_parser: install the package apparmor and restart Coracle"
		}
	}
	_, err = os.Stat("/sys/fs/selinux/enforce")
	m.seLinux = err == nil
	return m
}

// appArmor returns the profile of a container, nil for the runtime's default. Like upstream, it reads the container's
// security context, then the annotation, which only static pods have without the field, then the pod's context.
func appArmor(p *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	switch v := p.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; {
	case v == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case v == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case strings.HasPrefix(v, corev1.DeprecatedAppArmorBetaProfileNamePrefix):
		name := strings.TrimPrefix(v, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.AppArmorProfile
	}
	return nil
}

func appArmorName(a *corev1.AppArmorProfile) string {
	switch {
	case a == nil:
	case a.Type == corev1.AppArmorProfileTypeUnconfined:
		return runtime.Unconfined
	case a.Type == corev1.AppArmorProfileTypeLocalhost:
		return runtime.LocalProfile + ptr.Deref(a.LocalhostProfile, "")
	}
	return ""
}

// refuseAppArmor rejects pods that request an AppArmor profile which the node cannot apply.
func (m modules) refuseAppArmor(p *corev1.Pod) *Verdict {
	containers := append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...)
	for i := range p.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range containers {
		c := &containers[i]
		a := appArmor(p, c)
		switch {
		case a == nil || a.Type == corev1.AppArmorProfileTypeUnconfined:
			continue
		case m.noAppArmor != "":
			return &Verdict{Reason: "AppArmor", Message: "Cannot enforce AppArmor: " + m.noAppArmor}
		case a.Type == corev1.AppArmorProfileTypeLocalhost &&
			(a.LocalhostProfile == nil || strings.TrimSpace(*a.LocalhostProfile) == ""):
			return &Verdict{
				Reason:  "AppArmor",
				Message: "Cannot enforce AppArmor: container " + c.Name + " names no localhostProfile",
			}
		}
	}
	return nil
}
