package volumebinding

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Op is the one write that a plan requests. The objects are planned again after it.
type Op string

const (
	Nothing           Op = ""
	UpdateClaim       Op = "update claim"
	UpdateClaimStatus Op = "update claim status"
	CreateVolume      Op = "create volume"
	UpdateVolume      Op = "update volume"
	UpdateStatus      Op = "update volume status"
	DeleteVolume      Op = "delete volume"
	// RemoveDirectory removes the volume's directory from its node, and then its finalizer.
	RemoveDirectory Op = "remove directory"
	// Resized sends the node the volume's size, and then writes the claim's status.
	Resized Op = "resized"
	// Withdrawn sends the node a smaller size than the volume's object has, and then writes the object. If the
	// node refuses because it has already expanded the volume, the claim's status is written instead.
	Withdrawn Op = "withdrawn"
)

// Step is a write, with an event that explains it or explains why there is none.
type Step struct {
	Op     Op
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	Event  *engine.Notice
}

func (s Step) because(about client.Object, kind, reason, message string) Step {
	s.Event = &engine.Notice{About: about, Type: kind, Reason: reason, Message: message}
	return s
}

func updateClaim(was *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) Step {
	return Step{Op: UpdateClaim, Claim: engine.Changed(was, change)}
}

func updateClaimStatus(was *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaimStatus)) Step {
	next := was.DeepCopy()
	change(&next.Status)
	return Step{Op: UpdateClaimStatus, Claim: next}
}

func updateVolume(was *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) Step {
	return Step{Op: UpdateVolume, Volume: engine.Changed(was, change)}
}

func phase(was *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) Step {
	if was.Status.Phase == phase && was.Status.Message == message {
		return Step{}
	}
	next := was.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, message
	return Step{Op: UpdateStatus, Volume: next}
}
