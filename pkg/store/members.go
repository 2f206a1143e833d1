package store

import (
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// members is how many members the store has now, learners included. etcd adds a member before it lets it take part, so one that is
// alone by this count has seen every write.
func members(e *etcdserver.EtcdServer) int {
	if c, ok := e.Cluster().(*membership.RaftCluster); ok {
		return len(c.MemberIDs())
	}
	return len(e.Cluster().Members())
}

// leads says that this member is the leader, as far as it knows.
func leads(e *etcdserver.EtcdServer) bool { return e.Leader() == e.MemberID() }
