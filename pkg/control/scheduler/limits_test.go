package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Places pod "p", which uses the claims "c" and "d", beside a pod that uses the claim "other".
func TestVolumeLimits(t *testing.T) {
	const driver = "d.example.com"
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   "ns",
				Name:        name,
				Annotations: map[string]string{helpers.AnnBindCompleted: "yes"},
			},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name},
		}
	}
	volume := func(name, handle string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}},
		}
	}
	node := func(count *int32) *storagev1.CSINode {
		n := &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "a"}}},
		}
		if count != nil {
			n.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: count}
		}
		return n
	}
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "a",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("left")}},
	}
	insists := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: new(true)},
	}
	all := []ctrlclient.Object{claim("c"), claim("d"), claim("other"), volume("c", "1"), volume("d", "2")}
	for name, tt := range map[string]struct {
		more []ctrlclient.Object
		why  string // "": it is placed
	}{
		"no CSINode":        {more: []ctrlclient.Object{volume("other", "3")}},
		"no limit":          {more: []ctrlclient.Object{volume("other", "3"), node(nil)}},
		"exactly the limit": {more: []ctrlclient.Object{volume("other", "3"), node(new(int32(3)))}},
		"one too many": {
			more: []ctrlclient.Object{volume("other", "3"), node(new(int32(2)))}, why: tooManyVolumes,
		},
		"a volume that both pods use is one": {more: []ctrlclient.Object{volume("other", "1"), node(new(int32(2)))}},
		"a volume that is still attached": {
			more: []ctrlclient.Object{volume("other", "3"), volume("left", "4"), attachment, node(new(int32(3)))},
			why:  tooManyVolumes,
		},
		"attached and used is counted once": {
			more: []ctrlclient.Object{volume("other", "3"), volume("left", "3"), attachment, node(new(int32(3)))},
		},
		"the driver is missing and insists": {
			more: []ctrlclient.Object{volume("other", "3"), insists},
			why:  "d.example.com CSI driver is not installed on the node",
		},
		"the driver is installed and insists": {more: []ctrlclient.Object{volume("other", "3"), insists, node(nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(100, func(string) map[string]string { return nil })
			s.volumes.read = fake.NewClientBuilder().
				WithScheme(clientgoscheme.Scheme).WithObjects(append(tt.more, all...)...).Build()
			s.setNode(storageNode("a", nil))
			beside := podWithClaim("beside")
			beside.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other"
			s.assign(newPodInfo(beside), "a")
			pod := podWithClaim("p")
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
				Name:         "w",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "d"}},
			})
			_, failed := s.pick(newPodInfo(pod))
			if tt.why == "" {
				require.Nil(t, failed)
				return
			}
			require.NotNil(t, failed)
			require.Contains(t, failed.message(""), tt.why)
		})
	}
}

func TestCapacityOfDrivers(t *testing.T) {
	const driver = "d.example.com"
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "fast"},
		Provisioner:       driver,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast"),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			}},
	}
	capacity := func(change func(*storagev1.CSIStorageCapacity)) *storagev1.CSIStorageCapacity {
		c := &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "x"}, StorageClassName: "fast",
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "a"}},
			Capacity:     new(resource.MustParse("10Gi")),
		}
		if change != nil {
			change(c)
		}
		return c
	}
	for name, tt := range map[string]struct {
		publishes bool
		capacity  *storagev1.CSIStorageCapacity
		placed    bool
	}{
		"not published":     {placed: true},
		"nothing published": {publishes: true},
		"enough":            {publishes: true, capacity: capacity(nil), placed: true},
		"of another class": {
			publishes: true, capacity: capacity(func(c *storagev1.CSIStorageCapacity) { c.StorageClassName = "slow" }),
		},
		"on another node": {
			publishes: true,
			capacity: capacity(func(c *storagev1.CSIStorageCapacity) {
				c.NodeTopology.MatchLabels[corev1.LabelHostname] = "b"
			}),
		},
		"nowhere": {
			publishes: true, capacity: capacity(func(c *storagev1.CSIStorageCapacity) { c.NodeTopology = nil }),
		},
		"too little": {
			publishes: true,
			capacity:  capacity(func(c *storagev1.CSIStorageCapacity) { c.Capacity = new(resource.MustParse("9Gi")) }),
		},
		"in volumes too small": {
			publishes: true,
			capacity:  capacity(func(c *storagev1.CSIStorageCapacity) { c.MaximumVolumeSize = new(resource.MustParse("1Gi")) }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []ctrlclient.Object{
				class,
				claim,
				&storagev1.CSIDriver{
					ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &tt.publishes},
				},
			}
			if tt.capacity != nil {
				objects = append(objects, tt.capacity)
			}
			s := newState(100, func(string) map[string]string { return nil })
			s.volumes.read = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
			s.setNode(storageNode("a", nil))
			_, failed := s.pick(newPodInfo(podWithClaim("p")))
			if tt.placed {
				require.Nil(t, failed)
				return
			}
			require.NotNil(t, failed)
			require.Contains(t, failed.message(""), notEnoughSpace)
		})
	}
}

// Scores equal the scores of upstream's scorer.
func TestVolumesPreferFreeSpace(t *testing.T) {
	const driver = "d.example.com"
	class := func(name string) *storagev1.StorageClass {
		return &storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: name},
			Provisioner:       driver,
			VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		}
	}
	claim := func(name, class, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
				}},
		}
	}
	at := func(node string) map[string]string { return map[string]string{corev1.LabelHostname: node} }
	pool := func(class, node, size string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: class + node}, StorageClassName: class,
			NodeTopology: &metav1.LabelSelector{MatchLabels: at(node)}, Capacity: new(resource.MustParse(size)),
		}
	}
	volume := func(class, node, size string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: class + node}, Spec: corev1.PersistentVolumeSpec{StorageClassName: class,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
				NodeAffinity: &corev1.VolumeNodeAffinity{
					Required: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
							{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}},
					},
				}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
	}
	publishes := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)},
	}
	for name, tt := range map[string]struct {
		objects []ctrlclient.Object
		scores  map[string]int64
	}{
		"pools": {
			[]ctrlclient.Object{
				publishes, claim("c", "x", "10"), pool("x", "a", "100"), pool("x", "b", "40"), pool("x", "c", "10"),
			},
			map[string]int64{"a": 90, "b": 75, "c": 0},
		},
		"two claims of a pool": {
			[]ctrlclient.Object{
				publishes, claim("c", "x", "10"), claim("d", "x", "20"), pool("x", "a", "100"), pool("x", "b", "20"),
			},
			map[string]int64{"a": 70, "b": 0},
		},
		"two classes": {
			[]ctrlclient.Object{
				publishes, claim("c", "x", "10"), claim("d", "y", "20"), pool("x", "a", "100"), pool("y", "a", "40"),
			},
			map[string]int64{"a": 70},
		},
		"no capacity is published": {[]ctrlclient.Object{claim("c", "x", "10")}, map[string]int64{"a": 0, "b": 0}},
		"volumes": {
			[]ctrlclient.Object{claim("c", "x", "10"), volume("x", "a", "10"), volume("x", "b", "40")},
			map[string]int64{"a": 0, "b": 75},
		},
		"a volume, another is made": {
			[]ctrlclient.Object{
				publishes, claim("c", "x", "10"), claim("d", "y", "20"), volume("x", "a", "20"), pool("y", "a", "20"),
			},
			map[string]int64{"a": 50},
		},
		"beyond what a number can be": {
			[]ctrlclient.Object{publishes, claim("c", "x", "5E"), claim("d", "x", "5E"), pool("x", "a", "8E")},
			map[string]int64{"a": 0},
		},
		"beyond all numbers": {
			[]ctrlclient.Object{claim("c", "x", "1e400"), volume("x", "a", "1e400")}, map[string]int64{"a": 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(100, func(string) map[string]string { return nil })
			s.volumes.read = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(append(tt.objects, class("x"),
				class("y"))...).Build()
			pod := podWithClaim("p")
			for _, o := range tt.objects {
				if o.GetName() == "d" {
					pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
						Name: "w",
						VolumeSource: corev1.VolumeSource{
							PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "d"},
						},
					})
				}
			}
			c := s.cycle(newPodInfo(pod))
			require.True(t, prepareSpace(c))
			for node, want := range tt.scores {
				s.setNode(storageNode(node, at(node)))
				require.Equal(t, want, space(c, s.nodes[node]), node)
			}
		})
	}
}
