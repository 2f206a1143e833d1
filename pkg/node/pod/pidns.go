package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// pidNS is the PID namespace that a container joins, "" for a new one. Call close once the container runs.
type pidNS struct {
	path string
	// target is set for the namespace of another container. Its path is invalid for the next process.
	target bool
	close  func()
}

// pidNamespace returns the pod's shared PID namespace, or an ephemeral container's target's (kubectl debug --target).
func (w *worker) pidNamespace(ctx context.Context, p *corev1.Pod, name string,
	users *runtime.Users) (ns pidNS, err error) {
	ns.close = func() {}
	if p.Spec.HostPID {
		return ns, nil
	}
	if p.Spec.ShareProcessNamespace != nil && *p.Spec.ShareProcessNamespace {
		ns.path, err = w.m.c.Runtime.PodPIDNS(ctx, string(w.uid), users)
		return ns, err
	}
	target := targetOf(p, name)
	if target == "" {
		return ns, nil
	}
	for _, c := range w.m.containers.of(w.uid) {
		if c.Labels[labelName] == target && c.State == runtime.Running {
			ns.target = true
			ns.path, ns.close, err = w.m.c.Runtime.ContainerPIDNS(ctx, c.ID)
			return ns, err
		}
	}
	return ns, fmt.Errorf("unable to find target container %s: it does not run", target)
}

func targetOf(p *corev1.Pod, name string) string {
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name {
			return e.TargetContainerName
		}
	}
	return ""
}
