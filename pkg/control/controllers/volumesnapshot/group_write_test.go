package volumesnapshot

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// refusing is a client that rejects each creation with a different message, as a quota or a webhook might.
type refusing struct {
	client.Client
	creations int
	written   *snapshots.VolumeGroupSnapshot
	writes    int
}

func (r *refusing) Create(context.Context, client.Object, ...client.CreateOption) error {
	r.creations++
	return apierrors.NewForbidden(schema.GroupResource{Resource: "volumesnapshots"}, "s",
		fmt.Errorf("exceeded quota, request %d", r.creations))
}

func (r *refusing) Status() client.SubResourceWriter { return statusOf{r: r} }

type statusOf struct {
	client.SubResourceWriter
	r *refusing
}

func (s statusOf) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	s.r.writes++
	s.r.written, _ = o.(*snapshots.VolumeGroupSnapshot)
	return nil
}

// If a quota or a webhook rejects a group's snapshots, only a few creations are attempted. The group's status,
// whose write triggers another attempt, is not written each time.
func TestRefusedMembers(t *testing.T) {
	api, at := &refusing{}, now
	r := &reconciler{engine.Env{Client: api, Now: func() time.Time { return at }}}
	g := group("g", boundGroup)
	for range 5 {
		s := Step{Op: WriteMembers, Group: g}
		for i := range 500 {
			s.Members = append(s.Members, Step{Op: CreateSnapshot, Snapshot: snapshot(fmt.Sprint("s", i))})
		}
		require.True(t, apierrors.IsForbidden(r.writeMembers(t.Context(), s)))
		require.Equal(t,
			"failed to create the snapshots of the group with error volumesnapshots \"s\" is forbidden: exceeded quota, "+
				"request 1", *api.written.Status.Error.Message)
		require.False(t, *api.written.Status.ReadyToUse)
		g = api.written
	}
	require.Equal(t, 1, api.writes)
	require.Equal(t, 5, api.creations)
	at = at.Add(refusalAge)
	require.Error(t,
		r.writeMembers(t.Context(), Step{
			Op:      WriteMembers,
			Group:   g,
			Members: []Step{{Op: CreateSnapshot, Snapshot: snapshot("s")}},
		}))
	require.Contains(t, *api.written.Status.Error.Message, "request 6")
}
