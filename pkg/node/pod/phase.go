package pod

import corev1 "k8s.io/api/core/v1"

// phase derives the pod's phase from its containers' states by the kubelet's rules. Initialized means that a main
// container was created since the init containers last ran; terminal, that nothing of the pod runs or will run again.
func phase(p *corev1.Pod, s *corev1.PodStatus, initialized, terminal bool) corev1.PodPhase {
	if terminal {
		return endPhase(s)
	}
	for i, c := range s.InitContainerStatuses {
		sidecar := isSidecar(&p.Spec.InitContainers[i])
		if sidecar && initialized { // it restarts beside the main containers
			continue
		}
		running := c.State.Running != nil && !(sidecar && c.Started != nil && *c.Started)
		if running || neverRan(c) {
			return corev1.PodPending
		}
	}
	for _, c := range s.ContainerStatuses {
		if neverRan(c) {
			return corev1.PodPending
		}
	}
	if len(s.ContainerStatuses) == 0 {
		return corev1.PodPending
	}
	return corev1.PodRunning
}

func neverRan(c corev1.ContainerStatus) bool {
	return c.State.Running == nil && c.State.Terminated == nil && c.LastTerminationState.Terminated == nil
}

func endPhase(s *corev1.PodStatus) corev1.PodPhase {
	for _, c := range s.ContainerStatuses {
		if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
			return corev1.PodFailed
		}
	}
	if len(s.ContainerStatuses) == 0 {
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}
