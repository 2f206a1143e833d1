package bundle

import (
	"bytes"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const masked = "(masked)"

// privateKey matches a multi-line private key. A truncated key has no end marker.
var privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`)

// secrets are patterns that are masked everywhere. For speed, a pattern is applied only to lines that contain one
// of its hints in lower case.
var secrets = []struct { //nolint:gochecknoglobals // constants
	hints   []string
	pattern *regexp.Regexp
	with    string
}{
	// JSON web tokens
	{[]string{"eyj"}, regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), masked},
	// join tokens
	{
		[]string{"coracle2."},
		regexp.MustCompile(`coracle2\.[A-Za-z0-9_=+/-]+\.[A-Za-z0-9_=+/-]+\.[A-Za-z0-9_=+/-]+`),
		masked,
	},
	{[]string{"bearer ", "basic "}, regexp.MustCompile(`(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}`), "$1 " + masked},
	{[]string{"passw", "secret", "key", "token", "credential"},
		regexp.MustCompile(`(?i)((?:password|passwd|secret|api[-_]?key|access[-_]?key|token|credentials?)["']?\s*[=:]\s*["']?)[^\s"',;&(]{6,}`), "${1}" + masked},
	{[]string{"://"}, regexp.MustCompile(`://[^/\s:@"']+:[^/\s@"']+@`), "://" + masked + "@"}, // user:password in a URL
}

func mask(text []byte) []byte {
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privateKey.ReplaceAll(text, []byte(masked))
	}
	out := make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		lower := bytes.ToLower(line)
		for _, s := range secrets {
			if slices.ContainsFunc(s.hints, func(h string) bool { return bytes.Contains(lower, []byte(h)) }) {
				line = s.pattern.ReplaceAll(line, []byte(s.with))
			}
		}
		out = append(out, line...)
	}
	return out
}

// maskPod masks the parts of a pod that may contain secrets, in place.
func maskPod(p *corev1.Pod) {
	p.ManagedFields = nil
	for k := range p.Annotations {
		p.Annotations[k] = masked
	}
	env := func(list []corev1.EnvVar) {
		for i := range list {
			if list[i].Value != "" {
				list[i].Value = masked
			}
		}
	}
	header := func(a *corev1.HTTPGetAction) {
		if a != nil {
			for i := range a.HTTPHeaders {
				a.HTTPHeaders[i].Value = masked
			}
		}
	}
	probe := func(p *corev1.Probe) {
		if p != nil {
			header(p.HTTPGet)
		}
	}
	container := func(c *corev1.Container) {
		env(c.Env)
		probe(c.LivenessProbe)
		probe(c.ReadinessProbe)
		probe(c.StartupProbe)
		if l := c.Lifecycle; l != nil {
			for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
				if h != nil {
					header(h.HTTPGet)
				}
			}
		}
	}
	for i := range p.Spec.InitContainers {
		container(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		container(&p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		container(&c) // the copy shares the slices of the original
	}
}
