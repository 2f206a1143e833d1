package pod

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/logs"
	"github.com/coracle-dev/coracle/pkg/agent/network"
	"github.com/coracle-dev/coracle/pkg/agent/probe"
	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// hook runs a lifecycle handler until it is done or ctx ends.
func (m *Manager) hook(ctx context.Context, h *corev1.LifecycleHandler, c *corev1.Container, id, podIP string) error {
	switch {
	case h.Exec != nil:
		_, err := probe.Exec(ctx, m.c.Runtime, id, h.Exec.Command)
		return err
	case h.HTTPGet != nil:
		_, err := probe.HTTPGet(ctx, m.http, h.HTTPGet, c, podIP, "kube-lifecycle/1.37")
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
	if h.Protocol == "" {
		h.Protocol = "TCP"
	}
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

// message reads an ended instance's termination message. Called with the worker's lock held; read once per instance.
func (w *worker) message(i Instance) string {
	if s, ok := w.messages[i.ID]; ok {
		return s
	}
	text := ""
	if path := i.Labels[labelMessage]; path != "" {
		if f, err := os.Open(path); err == nil {
			buf := make([]byte, maxMessage)
			n, _ := f.Read(buf)
			text = string(buf[:n])
			f.Close()
		}
	}
	c, _, _ := containerOf(w.pod, i.Name)
	if text == "" && i.ExitCode != 0 && c != nil && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		text = logs.Tail(i.LogPath, maxMessageLines, maxLogMessage)
	}
	w.messages[i.ID] = text
	return text
}

// auths collects the registry logins of the pod's pull secrets that fit its images' registries, and those of others after them.
func (m *Manager) auths(ctx context.Context, p *corev1.Pod) []runtime.Auth {
	var out []runtime.Auth
	for _, ref := range p.Spec.ImagePullSecrets {
		s, err := m.volumes.Objects().Secret(ctx, p.Namespace, ref.Name)
		if err != nil {
			continue
		}
		out = append(out, authsOf(s, registries(p))...)
	}
	return out
}

func registries(p *corev1.Pod) map[string]bool {
	set := map[string]bool{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			if n, err := reference.ParseNormalizedNamed(c.Image); err == nil {
				set[reference.Domain(n)] = true
			}
		}
	}
	return set
}

func authsOf(s *corev1.Secret, wanted map[string]bool) []runtime.Auth {
	type login struct {
		Username, Password, Auth string
		RegistryToken            string `json:"registrytoken"`
	}
	logins := map[string]login{}
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var c struct {
			Auths map[string]login `json:"auths"`
		}
		if json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &c) != nil {
			return nil
		}
		logins = c.Auths
	case corev1.SecretTypeDockercfg:
		if json.Unmarshal(s.Data[corev1.DockerConfigKey], &logins) != nil {
			return nil
		}
	}
	var out []runtime.Auth
	for _, host := range sortedKeys(logins) {
		l := logins[host]
		name := strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://")
		name, _, _ = strings.Cut(name, "/")
		if name == "index.docker.io" {
			name = "docker.io"
		}
		if !wanted[name] {
			continue // a login is never shown to another registry
		}
		if raw, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && l.Username == "" {
			l.Username, l.Password, _ = strings.Cut(string(raw), ":")
		}
		out = append(out, runtime.Auth{Username: l.Username, Password: l.Password, Token: l.RegistryToken})
	}
	return out
}
