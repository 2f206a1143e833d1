package queue

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// The field numbers come from buildqueuestate.proto.

// message appends a length-delimited field: a message or a string.
func message(to []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), content)
}

// text appends a string unless it is empty.
func text(to []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return to
	}
	return message(to, field, []byte(s))
}

func table(to []byte, field protowire.Number, m map[string]string) []byte {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		to = message(to, field, text(text(nil, 1, k), 2, m[k]))
	}
	return to
}

// encode returns the name as a PlatformQueueName.
func (n Name) encode() []byte {
	var platform []byte
	for _, p := range n.Platform {
		platform = message(platform, 1, text(text(nil, 1, p.Name), 2, p.Value))
	}
	return message(text(nil, 1, n.InstanceNamePrefix), 2, platform)
}

// listWorkers encodes a ListWorkersRequest for the page of workers of size class 0 after the given worker ID, or for
// the first page if after is nil. platformQueue is a PlatformQueueName.
func listWorkers(platformQueue []byte, after map[string]string) []byte {
	sizeClassQueue := message(nil, 1, platformQueue)
	request := message(nil, 1, message(nil, 1, sizeClassQueue))
	request = protowire.AppendVarint(protowire.AppendTag(request, 3, protowire.VarintType), pageSize)
	if after != nil {
		request = message(request, 4, table(nil, 1, after))
	}
	return request
}

func terminateWorkers(pod string) []byte { return table(nil, 1, map[string]string{PodKey: pod}) }

// killOperation encodes a KillOperationsRequest that gives the operation's client an error.
func killOperation(operation string, code codes.Code, why string) []byte {
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(code))
	return message(message(nil, 1, text(nil, 1, operation)), 2, text(status, 2, why))
}

// parseQueues returns the names in a ListPlatformQueuesResponse, as PlatformQueueNames.
func parseQueues(data []byte) (list [][]byte, err error) {
	return list, fields(data, func(n protowire.Number, state []byte) error {
		if n != 1 {
			return nil
		}
		if len(list) == maxQueues {
			return fmt.Errorf("the scheduler has more than %d queues", maxQueues)
		}
		return fields(state, func(n protowire.Number, name []byte) error {
			if n == 1 {
				list = append(list, name)
			}
			return nil
		})
	})
}

// worker holds the fields of a WorkerState that this package reads.
type worker struct {
	id        map[string]string
	operation string // that it executes, or empty
}

func parseWorkers(data []byte) (list []worker, err error) {
	err = fields(data, func(n protowire.Number, content []byte) error {
		if n != 1 {
			return nil
		}
		if len(list) == pageSize {
			return errMessage // more workers than the request asked for
		}
		w := worker{id: map[string]string{}}
		err := fields(content, func(n protowire.Number, content []byte) error {
			switch n {
			case 1:
				return entry(content, w.id)
			case 3:
				return fields(content, func(n protowire.Number, name []byte) error {
					if n == 1 {
						w.operation = string(name)
					}
					return nil
				})
			}
			return nil
		})
		list = append(list, w)
		return err
	})
	return list, err
}

func entry(data []byte, into map[string]string) error {
	var key, value string
	err := fields(data, func(n protowire.Number, content []byte) error {
		switch n {
		case 1:
			key = string(content)
		case 2:
			value = string(content)
		}
		return nil
	})
	into[key] = value
	return err
}

var errMessage = errors.New("the scheduler's answer is not a message of its protocol")

// fields calls use for each length-delimited field (message or string) of a message, and skips all others.
func fields(data []byte, use func(n protowire.Number, content []byte) error) error {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return errMessage
		}
		data = data[size:]
		if kind != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
				return errMessage
			}
			data = data[size:]
			continue
		}
		content, size := protowire.ConsumeBytes(data)
		if size < 0 {
			return errMessage
		}
		data = data[size:]
		if err := use(number, content); err != nil {
			return err
		}
	}
	return nil
}
