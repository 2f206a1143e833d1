package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// Unit divides the number of IDs per pod and the first ID of each range, as in the kubelet.
	Unit = 65536
	// end is the limit of pods' IDs unless /etc/subuid sets another. Above it, ping_group_range cannot include
	// groups and programs that store IDs as signed numbers fail; 1<<32-1 is not a valid ID.
	end = 1 << 31
	// user is the user whose subordinate IDs pods get, as in the kubelet.
	user = "kubelet"
	// maxSubIDs is the maximum size of /etc/subuid and /etc/subgid, in bytes.
	maxSubIDs = 1 << 20
)

// configured returns the pool for the configuration in etc: the IDs that subuid(5) and subgid(5) assign to the user
// kubelet or, without such an entry, all IDs from each to end except those assigned to other users. It fails if
// fewer than pods ranges exist.
func configured(etc string, each uint32, pods int) (*pool, error) {
	users, err := subIDs(filepath.Join(etc, "subuid"))
	if err != nil {
		return nil, err
	}
	groups, err := subIDs(filepath.Join(etc, "subgid"))
	if err != nil {
		return nil, err
	}
	own := users[user]
	if !slices.Equal(own, groups[user]) {
		return nil, fmt.Errorf("/etc/subuid and /etc/subgid give the user %s different IDs: pods need the same of both", user)
	}
	all := Range{First: each, Count: end/each*each - each}
	if len(own) > 0 {
		all = own[0]
	}
	switch {
	case len(own) > 1:
		return nil, fmt.Errorf("/etc/subuid gives the user %s %d ranges: pods need one", user, len(own))
	case all.First < each || all.First%each != 0 || all.Count%each != 0:
		return nil, fmt.Errorf("/etc/subuid gives the user %s the IDs %d to %d: the first, which must not be 0, and their "+
			"number must be multiples of %d", user, all.First, all.end()-1, each)
	case all.end() > 1<<32-1:
		return nil, fmt.Errorf("/etc/subuid gives the user %s the IDs %d to %d, and the highest is not a valid ID", user,
			all.First, all.end()-1)
	case int(all.Count/each) < pods:
		return nil, fmt.Errorf("%d IDs for each of %d pods are more than the %d from %d on: give the user %s more in "+
			"/etc/subuid and /etc/subgid, or use fewer pods", each, pods, all.Count, all.First, user)
	}
	p := newPool(all, each)
	if len(own) == 0 {
		for name, list := range users {
			p.avoid("subuid/"+name, list)
		}
		for name, list := range groups {
			p.avoid("subgid/"+name, list)
		}
	}
	return p, nil
}

// avoid excludes other users' ranges from the pool. The owner's slash distinguishes it from a pod's UID.
func (p *pool) avoid(owner string, list []Range) {
	for i, r := range list {
		p.hold(fmt.Sprintf("%s/%d", owner, i), r)
	}
}

// subIDs reads a file of subordinate IDs: lines of the form user:first:count.
func subIDs(path string) (map[string][]Range, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := bounded.All(f, maxSubIDs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	all := map[string][]Range{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue // other readers also skip malformed lines
		}
		first, err1 := strconv.ParseUint(fields[1], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			if fields[0] == user {
				return nil, fmt.Errorf("%s: %q: %w", path, strings.TrimSpace(line), err)
			}
			continue
		}
		all[fields[0]] = append(all[fields[0]], Range{First: uint32(first), Count: uint32(count)})
	}
	return all, nil
}
