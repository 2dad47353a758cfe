module github.com/weir-pg/weir/bench

go 1.26.0

replace github.com/weir-pg/weir => ../
