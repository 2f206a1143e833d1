package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// The token file belongs to the user that all containers run as and to the pod's fsGroup, as in the kubelet.
func TestTokenOwner(t *testing.T) {
	u := func(id int64) *int64 { return &id }
	as := func(id *int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: id} }
	tests := map[string]struct {
		pod        *corev1.PodSecurityContext
		containers []*corev1.SecurityContext
		init       *corev1.SecurityContext
		ephemeral  *corev1.SecurityContext
		mode       fs.FileMode
		uid, gid   uint32
	}{
		"nobody is named": {containers: []*corev1.SecurityContext{nil, nil}, mode: 0o644},
		"the pod's user": {
			pod: &corev1.PodSecurityContext{RunAsUser: u(1000)}, containers: []*corev1.SecurityContext{nil, nil}, mode: 0o600,
			uid: 1000,
		},
		"the same user twice": {
			containers: []*corev1.SecurityContext{as(u(1000)), as(u(1000))}, mode: 0o600, uid: 1000,
		},
		"two users":               {containers: []*corev1.SecurityContext{as(u(1000)), as(u(1001))}, mode: 0o644},
		"one user, one not named": {containers: []*corev1.SecurityContext{as(u(1000)), nil}, mode: 0o644},
		"a container wins": {
			pod: &corev1.PodSecurityContext{RunAsUser: u(1000)}, containers: []*corev1.SecurityContext{as(u(1001))}, mode: 0o600,
			uid: 1001,
		},
		"an init container differs": {containers: []*corev1.SecurityContext{as(u(1000))}, init: as(u(7)), mode: 0o644},
		"an ephemeral one differs": {
			containers: []*corev1.SecurityContext{as(u(1000))}, ephemeral: as(u(7)), mode: 0o644,
		},
		"group alone": {
			pod: &corev1.PodSecurityContext{FSGroup: u(10000)}, containers: []*corev1.SecurityContext{nil}, mode: 0o640,
			gid: 10000,
		},
		"group and two users": {
			pod: &corev1.PodSecurityContext{FSGroup: u(10000)}, containers: []*corev1.SecurityContext{as(u(1)), as(u(2))},
			mode: 0o640, gid: 10000,
		},
		"group and one user": {
			pod: &corev1.PodSecurityContext{FSGroup: u(10000), RunAsUser: u(1000)}, containers: []*corev1.SecurityContext{nil},
			mode: 0o640, uid: 1000, gid: 10000,
		},
		"root, of all containers' own": {containers: []*corev1.SecurityContext{as(u(0))}, mode: 0o600},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, _ := manager(t)
			p := podWith(corev1.Volume{
				Name: "t",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}},
			})
			p.Spec.SecurityContext, p.Spec.Containers = tt.pod, nil
			for _, sc := range tt.containers {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{SecurityContext: sc})
			}
			if tt.init != nil {
				p.Spec.InitContainers = []corev1.Container{{SecurityContext: tt.init}}
			}
			if tt.ephemeral != nil {
				p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
					{EphemeralContainerCommon: corev1.EphemeralContainerCommon{SecurityContext: tt.ephemeral}},
				}
			}
			r, err := m.Setup(t.Context(), p, "")
			require.NoError(t, err)
			path := filepath.Join(r.Volumes["t"].Path, "token")
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, tt.mode, info.Mode())
			link, err := os.Lstat(path)
			require.NoError(t, err)
			for _, i := range []fs.FileInfo{info, link} {
				st := i.Sys().(*syscall.Stat_t)
				require.Equal(t, []uint32{tt.uid, tt.gid}, []uint32{st.Uid, st.Gid}, i.Mode())
			}
			dir, err := os.Stat(r.Volumes["t"].Path)
			require.NoError(t, err)
			require.Equal(t, tt.gid, dir.Sys().(*syscall.Stat_t).Gid)
		})
	}
}
