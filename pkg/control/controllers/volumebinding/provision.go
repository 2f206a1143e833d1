package volumebinding

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// provision asks the class's provisioner for a volume. A local volume's object is created here. Its node creates
// the directory later, for the first pod, so that no directory exists without an object.
func (s ClaimState) provision() Step {
	c, class := s.Claim, s.Class
	failed := func(message string) Step {
		return s.pending().because(c, corev1.EventTypeWarning, "ProvisioningFailed", message)
	}
	if class == nil {
		return failed(fmt.Sprintf("storageclass.storage.k8s.io %q not found", helpers.GetPersistentVolumeClaimClass(c)))
	}
	refused := func(why string) Step {
		return failed(fmt.Sprintf("Failed to provision volume with StorageClass %q: %s", class.Name, why))
	}
	if class.Provisioner == storage.Provisioner {
		if why := storage.Impossible(c, class); why != "" {
			return refused(why)
		}
	}
	if c.Annotations[helpers.AnnStorageProvisioner] != class.Provisioner ||
		c.Annotations[helpers.AnnBetaStorageProvisioner] != class.Provisioner {
		return updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnStorageProvisioner, class.Provisioner)
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnBetaStorageProvisioner, class.Provisioner)
		})
	}
	if class.Provisioner != storage.Provisioner {
		return s.pending().because(c, corev1.EventTypeNormal, "ExternalProvisioning",
			fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
				"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is "+
				"running and correctly registered.", class.Provisioner))
	}
	if s.copies() {
		return s.pending() // the localsnapshot reconciler creates it
	}
	selected, delayed := c.Annotations[helpers.AnnSelectedNode]
	n, why := s.node(selected)
	switch {
	case n != nil:
		return Step{Op: CreateVolume, Volume: storage.NewVolume(c, s.Class, n)}.because(c, corev1.EventTypeNormal,
			"ProvisioningSucceeded",
			"Successfully provisioned volume "+storage.VolumeName(c.UID)+" using "+storage.Provisioner)
	case delayed:
		// This makes the scheduler choose another node.
		step := updateClaim(c, func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, helpers.AnnSelectedNode) })
		return step.because(c, corev1.EventTypeWarning, "ProvisioningFailed",
			fmt.Sprintf("Failed to provision volume with StorageClass %q: %s", class.Name, why))
	}
	return refused(why)
}

// copies reports whether the claim's volume must be a local copy of another volume or of a snapshot. It is created
// on the source's node, whichever node the scheduler would choose.
func (s ClaimState) copies() bool {
	return s.Class != nil && s.Class.Provisioner == storage.Provisioner &&
		(s.Claim.Spec.DataSource != nil || s.Claim.Spec.DataSourceRef != nil)
}

// node returns the node for a volume: the selected one or, for classes that bind immediately, a ready and
// schedulable one. why says why there is none.
func (s ClaimState) node(selected string) (n *corev1.Node, why string) {
	if selected != "" {
		i := slices.IndexFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == selected })
		if i < 0 {
			return nil, fmt.Sprintf("failed to get target node: nodes %q not found", selected)
		}
		if why := s.unfit(s.Nodes[i]); why != "" {
			return nil, why
		}
		return s.Nodes[i], ""
	}
	var fit []*corev1.Node
	for _, n := range s.Nodes {
		if !n.Spec.Unschedulable && nodestate.Ready(n) && s.unfit(n) == "" {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil, "no ready node can hold the volume"
	}
	return slices.MinFunc(fit, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) }), ""
}

func (s ClaimState) unfit(n *corev1.Node) string {
	if n.Annotations[storage.DirectoryAnnotation] == "" || n.Labels[corev1.LabelHostname] == "" {
		return fmt.Sprintf("node %q has no local volumes", n.Name)
	}
	if len(s.Class.AllowedTopologies) > 0 && !storage.InTopology(s.Class.AllowedTopologies, n.Labels) {
		return fmt.Sprintf("node %q is not in the class's allowedTopologies", n.Name)
	}
	return ""
}
