package schema

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// collect returns a visitor that adds servers, clients, files, queues and routes to facts. It sets no line numbers:
// only the caller has the source files.
func collect(facts *protocol.Facts) func(message) *Error {
	return func(m message) *Error {
		at := func(field string) protocol.Place { return protocol.Place{Field: join(m.path, field)} }
		switch m.name() {
		case "grpc.ServerConfiguration", "http.server.Configuration":
			for i, address := range texts(m, "listen_addresses") {
				facts.Servers = append(facts.Servers, protocol.Server{
					Place: at(fmt.Sprintf("listenAddresses[%d]", i)), Address: address,
				})
			}
			for i, path := range texts(m, "listen_paths") {
				facts.Servers = append(facts.Servers, protocol.Server{Place: at(fmt.Sprintf("listenPaths[%d]", i)), Path: path})
			}
		case "grpc.ClientConfiguration":
			address := m.of("address").String() // the address is reported once, however often it occurs
			if !slices.ContainsFunc(facts.Clients, func(c protocol.Client) bool { return c.Address == address }) {
				facts.Clients = append(facts.Clients, protocol.Client{Place: at("address"), Address: address})
			}
		case "blockdevice.FileConfiguration":
			path := m.of("path").String()
			facts.Files = append(facts.Files, protocol.File{Place: at("sizeBytes"), Path: path, Bytes: m.of("size_bytes").Int()})
		case "bb_worker.RunnerConfiguration", "bb_scheduler.PredeclaredPlatformQueueConfiguration":
			facts.Queues = append(facts.Queues, protocol.Queue{
				Place:    at("instanceNamePrefix"),
				Prefix:   m.of("instance_name_prefix").String(),
				Platform: properties(m),
			})
		case "builder.SchedulerConfiguration":
			to := message{Message: m.of("endpoint").Message()}
			facts.Routes = append(facts.Routes, protocol.Route{
				Place:   protocol.Place{Field: m.path},
				Added:   m.of("add_instance_name_prefix").String(),
				Address: to.of("address").String(),
			})
		}
		return nil
	}
}

// texts returns the values of a list of strings, or nil if the message has no such field.
func texts(m message, field protoreflect.Name) (out []string) {
	f := m.Descriptor().Fields().ByName(field)
	if f == nil {
		return nil
	}
	list := m.Get(f).List()
	for i := range list.Len() {
		out = append(out, list.Get(i).String())
	}
	return out
}

func properties(m message) (out []protocol.Property) {
	platform := message{Message: m.of("platform").Message()}
	list := platform.of("properties").List()
	for i := range list.Len() {
		p := message{Message: list.Get(i).Message()}
		out = append(out, protocol.Property{Name: p.of("name").String(), Value: p.of("value").String()})
	}
	return out
}
