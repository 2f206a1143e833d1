package store

import (
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// members returns the number of members, including learners. etcd adds a member before it lets it take part, so a
// member that is the only one by this count has seen every write.
func members(e *etcdserver.EtcdServer) int {
	if c, ok := e.Cluster().(*membership.RaftCluster); ok {
		return len(c.MemberIDs())
	}
	return len(e.Cluster().Members())
}

func leads(e *etcdserver.EtcdServer) bool { return e.Leader() == e.MemberID() }

// Alone reports whether the store is running and has no other member, including learners. Its data directory is
// locked, so no other process reads or writes it then. It is false with external servers.
func (s *Store) Alone() bool {
	e := s.etcd.Load()
	return e != nil && (*e).members() == 1
}

// Member returns the ID of this member, which is constant for a data directory; 0 if the store is not running or etcd
// is external.
func (s *Store) Member() uint64 {
	e := s.etcd.Load()
	if e == nil {
		return 0
	}
	return (*e).id()
}
