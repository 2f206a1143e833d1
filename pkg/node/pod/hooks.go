package pod

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/logs"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
)

func (m *Manager) hook(ctx context.Context, p *corev1.Pod, h *corev1.LifecycleHandler, c *corev1.Container, id,
	podIP string) error {
	switch {
	case h.Exec != nil:
		_, err := probe.Exec(ctx, m.c.Runtime, id, h.Exec.Command)
		return err
	case h.HTTPGet != nil: // any status is success, as in the kubelet
		t := probe.Target{Container: c, PodIP: podIP, HostNetwork: p.Spec.HostNetwork}
		_, err := m.probing.HTTPGet(ctx, h.HTTPGet, t, "kube-lifecycle/1.37")
		return err
	case h.Sleep != nil:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
			return nil
		}
	}
	return errors.New("this lifecycle handler is not supported; use exec, httpGet or sleep")
}

func hostPort(p corev1.ContainerPort) network.HostPort {
	h := network.HostPort{HostPort: uint16(p.HostPort), PodPort: uint16(p.ContainerPort), Protocol: string(p.Protocol)}
	h.Protocol = cmp.Or(h.Protocol, "TCP")
	if a, err := netip.ParseAddr(p.HostIP); err == nil && !a.IsUnspecified() {
		h.HostIP = a
	}
	return h
}

const (
	maxMessage      = 4096
	maxLogMessage   = 2048
	maxMessageLines = 80
)

// message returns an ended instance's termination message, reading it once. Only the sync loop calls it.
func (w *worker) message(p *corev1.Pod, i Instance) string {
	if s, ok := w.seen.messages[i.ID]; ok {
		return s
	}
	text := ""
	if path := i.Labels[labelMessage]; path != "" {
		text = fileEnd(path, maxMessage)
	}
	c, _, _ := containerOf(p, i.Name)
	if text == "" && i.ExitCode != 0 && c != nil &&
		c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		text = logs.Tail(i.LogPath, maxMessageLines, maxLogMessage)
	}
	w.seen.messages[i.ID] = text
	return text
}

// fileEnd returns up to limit bytes from the end of a file that a container can write, or "" if it cannot be read.
func fileEnd(path string, limit int64) string {
	f, err := bounded.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(info.Size(), limit))
	n, _ := f.ReadAt(buf, info.Size()-int64(len(buf)))
	return string(buf[:n])
}

// credentials returns credentials for an image: first from the pod's pull secrets, then from plugins.
func (m *Manager) credentials(ctx context.Context, p *corev1.Pod, image string) []keyring.Credential {
	var k keyring.Keyring
	for _, ref := range p.Spec.ImagePullSecrets {
		s, err := m.volumes.Objects().Secret(ctx, p.Namespace, ref.Name)
		if err == nil {
			err = k.Add(s)
		}
		if err != nil {
			m.c.Logger.Warn("could not use pull secret", "pod", p.Namespace+"/"+p.Name, "secret", ref.Name, "error", err)
		}
	}
	found := k.Lookup(image)
	if m.c.Credentials != nil {
		found = append(found, m.c.Credentials(ctx, p, image)...)
	}
	return found
}
