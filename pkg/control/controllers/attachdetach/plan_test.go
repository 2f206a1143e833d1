package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func volume(name string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{AccessModes: modes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "handle-" + name},
			}},
	}
}

func attachment(name string, attached, deleted bool) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName("d", "handle-"+name, "n")},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: "n",
			Attacher: "d",
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		}}
	a.Status.Attached = attached
	if deleted {
		a.DeletionTimestamp = &metav1.Time{Time: now}
	}
	return a
}

func node(ready bool, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{VolumesInUse: inUse}}
	if ready {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	return n
}

func TestPlan(t *testing.T) {
	const mounted = corev1.UniqueVolumeName("kubernetes.io/csi/d^handle-v")
	rwo := volume("v", corev1.ReadWriteOnce)
	name := attachmentName("d", "handle-v", "n")
	lost := node(false, mounted)
	lost.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	foreign := node(true)
	foreign.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/other/x"}}
	wanted := map[string]*corev1.PersistentVolume{"v": rwo}
	known := map[string]*corev1.PersistentVolume{"v": rwo}
	theirs := attachment("other", false, false)
	theirs.Name = "va-other"
	list := func(a ...*storagev1.VolumeAttachment) []*storagev1.VolumeAttachment { return a }
	for title, tt := range map[string]struct {
		o        Observed
		attach   int
		detach   int
		blocked  int
		reported []corev1.UniqueVolumeName
		again    time.Duration
	}{
		"a pod wants it": {o: Observed{Node: node(true), Wanted: wanted}, attach: 1},
		"it is asked for already": {
			o: Observed{Node: node(true), Wanted: wanted, Volumes: known, Attachments: list(attachment("v", false, false))},
		},
		"it is attached": {
			o: Observed{
				Node:        node(true),
				Wanted:      wanted,
				Volumes:     known,
				Attachments: list(attachment("v", true, false)),
			},
			reported: []corev1.UniqueVolumeName{mounted},
		},
		"another node has it": {
			o: Observed{Node: node(true), Wanted: wanted, Elsewhere: map[string][]string{"v": {"m"}}}, blocked: 1,
		},
		"another node has it, and may": {
			o: Observed{
				Node:      node(true),
				Wanted:    map[string]*corev1.PersistentVolume{"v": volume("v", corev1.ReadWriteMany)},
				Elsewhere: map[string][]string{"v": {"m"}},
			}, attach: 1,
		},
		"it is being detached and wanted again": {
			o: Observed{Node: node(true), Wanted: wanted, Volumes: known, Attachments: list(attachment("v", true, true))},
		},
		"nobody wants it": {
			o: Observed{Node: node(true), Volumes: known, Attachments: list(attachment("v", true, false))}, detach: 1,
		},
		"nobody wants it, but it is mounted": {
			o:        Observed{Node: node(true, mounted), Volumes: known, Attachments: list(attachment("v", true, false))},
			reported: []corev1.UniqueVolumeName{mounted},
		},
		"its volume is gone, but it is mounted": {
			o: Observed{Node: node(true, mounted), Attachments: list(attachment("v", true, false))},
		},
		"mounted on a node that is lost": {
			o:        Observed{Node: node(false, mounted), Volumes: known, Attachments: list(attachment("v", true, false))},
			reported: []corev1.UniqueVolumeName{mounted}, again: ForceAfter,
		},
		"mounted on a node that was lost for long": {
			o: Observed{
				Node:        node(false, mounted),
				Volumes:     known,
				Attachments: list(attachment("v", true, false)),
				Since:       map[string]time.Time{name: now.Add(-ForceAfter)},
			}, detach: 1,
		},
		"mounted on a node that is lost for a while": {
			o: Observed{
				Node:        node(false, mounted),
				Attachments: list(attachment("v", true, false)),
				Since:       map[string]time.Time{name: now.Add(-time.Minute)},
			}, again: 5 * time.Minute,
		},
		"mounted on a node out of service": {
			o: Observed{Node: lost, Volumes: known, Attachments: list(attachment("v", true, false))}, detach: 1,
		},
		"nobody wants it, and somebody else made it": {o: Observed{Node: node(true), Attachments: list(theirs)}},
		"the node is gone":                           {o: Observed{Wanted: wanted, Volumes: known, Attachments: list()}},
		"the node is gone, with a volume": {
			o: Observed{Volumes: known, Attachments: list(attachment("v", true, false))}, detach: 1,
		},
		"what others attached stays reported": {
			o: Observed{Node: foreign}, reported: []corev1.UniqueVolumeName{"kubernetes.io/other/x"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			tt.o.Name = "n"
			d := Plan(tt.o, now)
			require.Len(t, d.Attach, tt.attach)
			require.Len(t, d.Detach, tt.detach)
			require.Len(t, d.Blocked, tt.blocked)
			require.Equal(t, tt.again, d.Again)
			var reported []corev1.UniqueVolumeName
			for _, v := range d.Reported {
				reported = append(reported, v.Name)
			}
			require.Equal(t, tt.reported, reported)
		})
	}
}
