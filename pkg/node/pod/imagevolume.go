package pod

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/images"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
)

// mountImages pulls and mounts a container's image volumes. As in the kubelet, a failed pull is reported for the
// container, with the reasons for its own image. A mounted volume keeps its image for the life of the pod.
func (w *worker) mountImages(ctx context.Context, p *corev1.Pod, c *corev1.Container, users string) *Failure {
	m := w.m
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Image == nil || !mountsVolume(c, v.Name) {
			continue
		}
		mounted, err := m.volumes.ImageMounted(p.UID, v.Name)
		if err == nil && !mounted {
			img, pulling := m.images.Ensure(ctx, images.Request{
				Ref: v.Image.Reference, Policy: v.Image.PullPolicy, Namespace: p.Namespace,
				Event:       func(kind, reason, message string) { m.event(p, "", kind, reason, message) },
				Credentials: func() []keyring.Credential { return m.credentials(ctx, p, v.Image.Reference) },
			})
			if pulling != nil {
				f := w.imageFailure(c.Name, pulling)
				if ctx.Err() == nil {
					m.event(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+f.Reason)
				}
				return f
			}
			err = m.volumes.MountImage(ctx, p.UID, v.Name, img.ID, users)
		}
		if err != nil {
			f := w.fail(c.Name, "CreateContainerError", err, time.Second)
			f.Message = "ImageVolumeMountFailed: " + f.Message
			if ctx.Err() == nil {
				m.event(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+f.Message)
			}
			return f
		}
	}
	return nil
}

func mountsVolume(c *corev1.Container, name string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
}
