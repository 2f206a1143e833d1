package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/certificates"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// certificate checks the Secret with the part's certificate, and returns the hash of its authorities for the pod
// template. While the Secret is missing or invalid it returns the last hash, so that running pods stay.
func (p *plan) certificate() string {
	t := p.part.Pods().TLS
	if t == nil {
		p.forget(buildbarn.ConditionCertificates)
		return ""
	}
	if p.o.Secret == nil {
		p.condition(buildbarn.ConditionCertificates, metav1.ConditionFalse, "SecretMissing",
			fmt.Sprintf("there is no Secret %s: make one with tls.crt, tls.key and ca.crt; new pods wait for it", t.SecretName))
		return p.lastAuthorities()
	}
	if err := checkSecret(p.o.Secret.Data); err != nil {
		p.condition(buildbarn.ConditionCertificates, metav1.ConditionFalse, "SecretInvalid",
			fmt.Sprintf("Secret %s: %v", t.SecretName, err))
		return p.lastAuthorities()
	}
	p.condition(buildbarn.ConditionCertificates, metav1.ConditionTrue, "Valid", "")
	sum := sha256.Sum256(p.o.Secret.Data[certificates.Authorities])
	return hex.EncodeToString(sum[:])[:10]
}

func checkSecret(data map[string][]byte) error {
	for _, key := range []string{certificates.Certificate, certificates.Key, certificates.Authorities} {
		if len(data[key]) == 0 {
			return fmt.Errorf("it has no %s", key)
		}
	}
	if _, err := pki.ForeignPair(data[certificates.Certificate], data[certificates.Key]); err != nil {
		return fmt.Errorf("%s and %s: %w", certificates.Certificate, certificates.Key, err)
	}
	return nil
}

func (p *plan) lastAuthorities() string {
	if d := p.o.Deployment; d != nil {
		return d.Spec.Template.Annotations[buildbarn.AnnotationAuthorities]
	}
	if s := p.o.StatefulSet; s != nil {
		return s.Spec.Template.Annotations[buildbarn.AnnotationAuthorities]
	}
	return ""
}

// withCertificate mounts the Secret into the first container, the part's program. A worker's runner must not see it,
// because it runs users' commands.
func withCertificate(t *corev1.PodTemplateSpec, secret, authorities string) {
	mode := corev1.SecretVolumeSourceDefaultMode
	t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{
		Name:         "tls",
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: &mode}},
	})
	c := &t.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tls", MountPath: protocol.Mounted, ReadOnly: true})
	if authorities != "" {
		t.Annotations[buildbarn.AnnotationAuthorities] = authorities
	}
}
