package volumebinding

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

// provision asks the class's provisioner for a volume. Coracle's own volumes are made here: the object first, its directory by the node with
// the first pod, so that no directory is without an object.
func (s ClaimState) provision() Step {
	c, class := s.Claim, s.Class
	failed := func(message string) Step {
		return s.pending().because(c, corev1.EventTypeWarning, "ProvisioningFailed", message)
	}
	if class == nil {
		return failed(fmt.Sprintf("storageclass.storage.k8s.io %q not found", helpers.GetPersistentVolumeClaimClass(c)))
	}
	if c.Annotations[helpers.AnnStorageProvisioner] != class.Provisioner || c.Annotations[helpers.AnnBetaStorageProvisioner] != class.Provisioner {
		return updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnStorageProvisioner, class.Provisioner)
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnBetaStorageProvisioner, class.Provisioner)
		})
	}
	if class.Provisioner != storage.Provisioner {
		return s.pending().because(c, corev1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
			"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner))
	}
	refused := func(why string) Step {
		return failed(fmt.Sprintf("Failed to provision volume with StorageClass %q: %s", class.Name, why))
	}
	if why := s.impossible(); why != "" {
		return refused(why)
	}
	selected, delayed := c.Annotations[helpers.AnnSelectedNode]
	n, why := s.node(selected)
	switch {
	case n != nil:
		return Step{Op: CreateVolume, Volume: s.volume(n)}.because(c, corev1.EventTypeNormal, "ProvisioningSucceeded",
			"Successfully provisioned volume "+storage.VolumeName(c.UID)+" using "+storage.Provisioner)
	case delayed:
		// The scheduler chooses again.
		step := updateClaim(c, func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, helpers.AnnSelectedNode) })
		return step.because(c, corev1.EventTypeWarning, "ProvisioningFailed", fmt.Sprintf("Failed to provision volume with StorageClass %q: %s", class.Name, why))
	}
	return refused(why)
}

// impossible returns what a directory on a node cannot give, "" if there is nothing.
func (s ClaimState) impossible() string {
	c, class := &s.Claim.Spec, s.Class
	for _, mode := range c.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf("invalid AccessModes %v: only ReadWriteOnce and ReadWriteOncePod are supported by local volumes", c.AccessModes)
		}
	}
	switch {
	case c.VolumeMode != nil && *c.VolumeMode != corev1.PersistentVolumeFilesystem:
		return "block volume provisioning is not supported"
	case c.Selector != nil:
		return "claim.Spec.Selector is not supported"
	case c.DataSource != nil || c.DataSourceRef != nil:
		return "claim.Spec.DataSource is not supported: local volumes are made empty"
	case attributes(c.VolumeAttributesClassName) != "":
		return "claim.Spec.VolumeAttributesClassName is not supported"
	case len(class.Parameters) > 0:
		return "the class has parameters, and local volumes take none"
	case len(class.MountOptions) > 0:
		return "the class has mountOptions, and local volumes take none"
	}
	return ""
}

// node returns the node for a volume: the selected one, or, in classes that do not wait for a pod, one that can take pods.
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
		if !n.Spec.Unschedulable && ready(n) && s.unfit(n) == "" {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil, "no node that is ready can have it"
	}
	return slices.MinFunc(fit, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) }), ""
}

func (s ClaimState) unfit(n *corev1.Node) string {
	if n.Annotations[storage.DirectoryAnnotation] == "" || n.Labels[corev1.LabelHostname] == "" {
		return fmt.Sprintf("node %q has no local volumes", n.Name)
	}
	if len(s.Class.AllowedTopologies) > 0 && !inTopology(s.Class.AllowedTopologies, n.Labels) {
		return fmt.Sprintf("node %q is not in the class's allowedTopologies", n.Name)
	}
	return ""
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (s ClaimState) volume(n *corev1.Node) *corev1.PersistentVolume {
	c := s.Claim
	name := storage.VolumeName(c.UID)
	policy, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	if s.Class.ReclaimPolicy != nil {
		policy = *s.Class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{storage.Finalizer},
			Annotations: map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage].DeepCopy()},
			AccessModes:                   slices.Clone(c.Spec.AccessModes),
			PersistentVolumeReclaimPolicy: policy, StorageClassName: s.Class.Name, VolumeMode: &mode,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{
				Path: path.Join(n.Annotations[storage.DirectoryAnnotation], name)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n.Labels[corev1.LabelHostname]}}},
			}}}},
		},
	}
}
